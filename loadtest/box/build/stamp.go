package build

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
)

// stamp identifies all that goes into a binary of the module. A module's
// content needs no place in it: its version stands for that for ever.
func (m Module) stamp(bin Binary) string {
	data, err := json.Marshal(struct {
		Go     string
		Module Module
		Binary Binary
		Args   []string
	}{runtime.Version(), m, bin, m.args("")})
	if err != nil {
		panic(err) // strings only
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (b Builder) stampPath(name string) string { return filepath.Join(b.Bin, "."+name+".stamp") }

// fresh says whether the binary exists and was built from what stamp stands for.
func (b Builder) fresh(name, stamp string) bool {
	if _, err := os.Stat(filepath.Join(b.Bin, name)); err != nil {
		return false
	}
	had, err := os.ReadFile(b.stampPath(name))
	return err == nil && string(had) == stamp
}

func (b Builder) writeStamp(name, stamp string) error {
	return os.WriteFile(b.stampPath(name), []byte(stamp), 0o644)
}
