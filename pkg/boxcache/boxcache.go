// Package boxcache says where the box, which is a module of its own, keeps what `make box-build` made.
package boxcache

import (
	"os"
	"path/filepath"
)

// Binary returns the path of a binary. It need not be there yet.
func Binary(name string) (string, error) {
	cache := os.Getenv("LIBRA_BOX_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		cache = filepath.Join(dir, "libra-box")
	}
	return filepath.Join(cache, "bin", name), nil
}
