//go:build install

package install

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// made is the release of this tree, which all tests of a run install from one registry.
var made struct {
	once  sync.Once
	at    string // its repository; empty when it could not be made
	blobs string
	stop  func()
}

func TestMain(m *testing.M) {
	code := m.Run()
	if made.stop != nil {
		made.stop()
	}
	if made.blobs != "" {
		os.RemoveAll(made.blobs)
	}
	os.Exit(code)
}

// released makes the release of this tree, unless another test has.
func (u *user) released() {
	u.Helper()
	made.once.Do(func() {
		var err error
		if made.blobs, err = os.MkdirTemp("", "install-test-"); err != nil {
			u.Fatal(err)
		}
		var address string
		address, made.stop = startRegistry(u.T, made.blobs)
		u.release(address+"/libra", root, version)
		made.at = address + "/libra"
	})
	if made.at == "" {
		u.Fatal("there is no release: it could not be made for the test before")
	}
}

// image returns the reference of an image of the release.
func (u *user) image(name string) string {
	u.Helper()
	text, err := os.ReadFile(filepath.Join(u.dist, "images.json"))
	if err != nil {
		u.Fatal(err)
	}
	var images map[string]string
	if err := json.Unmarshal(text, &images); err != nil {
		u.Fatal(err)
	}
	return images[name]
}

// record adds figures to results.json, to which other tests add theirs.
func (u *user) record(figures map[string]any) {
	u.Helper()
	path := filepath.Join(*outPath, "results.json")
	all := map[string]any{}
	if data, err := os.ReadFile(path); err == nil {
		if err := json.Unmarshal(data, &all); err != nil {
			u.Fatalf("%s: %v", path, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		u.Fatal(err)
	}
	maps.Copy(all, figures)
	data, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		u.Fatal(err)
	}
	if err := os.MkdirAll(*outPath, 0o755); err != nil {
		u.Fatal(err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		u.Fatal(err)
	}
	u.Logf("%s", data)
}
