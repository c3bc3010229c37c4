package build

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Once runs make, which makes the file or folder at path, unless path was already
// made from the same inputs. JSON must tell different inputs apart.
func Once(path string, inputs any, make func() error) error {
	stamp, err := stampOf(inputs)
	if err != nil {
		return fmt.Errorf("stamp %s: %w", path, err)
	}
	if fresh(path, stamp) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// A half-made path must not pass for the earlier one.
	if err := os.Remove(StampPath(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := make(); err != nil {
		return err
	}
	return os.WriteFile(StampPath(path), []byte(stamp), 0o644)
}

func stampOf(inputs any) (string, error) {
	data, err := json.Marshal(inputs)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// Digest returns a hash of the names and contents of files.
func Digest(paths ...string) (string, error) {
	h := sha256.New()
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%d %s\n%s", len(data), filepath.Base(path), data)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// StampPath is where Once records what the file or folder at path was made from.
func StampPath(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".stamp")
}

func fresh(path, stamp string) bool {
	if _, err := os.Stat(path); err != nil {
		return false
	}
	had, err := os.ReadFile(StampPath(path))
	return err == nil && string(had) == stamp
}
