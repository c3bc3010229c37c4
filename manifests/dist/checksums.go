package dist

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	checksumsFile = "SHA256SUMS"
	// imagesFolder has files that are named by their digests already.
	imagesFolder = "images"
)

// checksums returns those of all files in a folder but images, as `sha256sum --check` reads them.
func checksums(dir string) ([]byte, error) {
	var sums bytes.Buffer
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path == imagesFolder:
			return fs.SkipDir
		case entry.IsDir() || path == checksumsFile:
			return nil
		}
		data, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(path)))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(data), path)
		return err
	})
	return sums.Bytes(), err
}
