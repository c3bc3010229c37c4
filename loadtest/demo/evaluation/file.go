package evaluation

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// DataFile is the name of the file with the measurements, in a command's folder.
const DataFile = "data.json.gz"

// WriteFile writes the measurements so far. If it is interrupted, the earlier file
// stays.
func (d Data) WriteFile(path string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".data-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name()) //nolint:errcheck // it is only half there
		}
	}()
	z := gzip.NewWriter(f)
	if err := errors.Join(json.NewEncoder(z).Encode(d), z.Close(), f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("write the measurements: %w", err)
	}
	return os.Rename(f.Name(), path)
}

// ReadFile reads what WriteFile wrote.
func ReadFile(path string) (d Data, err error) {
	f, err := os.Open(path)
	if err != nil {
		return d, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(z).Decode(&d)
	}
	if err != nil {
		return d, fmt.Errorf("%s is not the data of an evaluation: %w", path, err)
	}
	return d, nil
}
