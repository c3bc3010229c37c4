package build

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// Source is where the module cache keeps a module.
type Source struct {
	Dir   string
	GoMod string
	Error string
}

// Download fetches a module into the module cache.
func Download(ctx context.Context, path, version string) (Source, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", path+"@"+version)
	cmd.Env = environment()
	var s Source
	out, err := cmd.Output()
	if jsonErr := json.Unmarshal(out, &s); jsonErr == nil && s.Error != "" {
		return s, fmt.Errorf("download %s@%s: %s", path, version, s.Error)
	}
	if err != nil {
		return s, fmt.Errorf("download %s@%s: %w", path, version, err)
	}
	return s, nil
}

// Requirement returns the version of path that the go.mod in data requires.
func Requirement(data []byte, path string) (string, error) {
	f, err := modfile.ParseLax("go.mod", data, nil)
	if err != nil {
		return "", err
	}
	for _, r := range f.Require {
		if r.Mod.Path == path {
			return r.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("module %s does not require %s", f.Module.Mod.Path, path)
}

// throwaway returns the go.mod of a module that requires m, and in later versions
// what the go.mod beside requires in such. upstream is m's own go.mod. Its other
// requirements need no copy: Go selects the same versions as long as nothing else
// asks for more. Its replaces do: Go heeds replaces only in the main module.
func (m Module) throwaway(upstream, beside []byte) ([]byte, error) {
	up, err := modfile.Parse(m.Path+"/go.mod", upstream, nil)
	if err != nil {
		return nil, err
	}
	var f modfile.File
	if err := f.AddModuleStmt("throwaway"); err != nil {
		return nil, err
	}
	if up.Go != nil {
		if err := f.AddGoStmt(up.Go.Version); err != nil {
			return nil, err
		}
	}
	if err := f.AddRequire(m.Path, m.Version); err != nil {
		return nil, err
	}
	other, err := modfile.Parse(m.Beside, beside, nil)
	if err != nil {
		return nil, err
	}
	for _, later := range laterIn(other, up) {
		if err := f.AddRequire(later.Path, later.Version); err != nil {
			return nil, err
		}
	}
	if m.Replace != nil {
		for _, line := range m.Replace {
			from, to, ok := strings.Cut(line, " => ")
			path, version, ok2 := strings.Cut(to, " ")
			if !ok || !ok2 {
				return nil, fmt.Errorf("replace %q of %s; it must be \"old => new version\"", line, m.Path)
			}
			if err := f.AddReplace(from, "", path, version); err != nil {
				return nil, err
			}
		}
		return f.Format()
	}
	for _, r := range up.Replace {
		if r.New.Version == "" {
			return nil, fmt.Errorf("%s@%s replaces %s by the folder %s, which is not in its module: name its replacement in Module.Replace",
				m.Path, m.Version, r.Old.Path, r.New.Path)
		}
		if err := f.AddReplace(r.Old.Path, r.Old.Version, r.New.Path, r.New.Version); err != nil {
			return nil, err
		}
	}
	return f.Format()
}

// laterIn returns what other requires of what f requires, where it is a later version.
func laterIn(other, f *modfile.File) (later []module.Version) {
	versions := map[string]string{}
	for _, r := range f.Require {
		versions[r.Mod.Path] = r.Mod.Version
	}
	for _, r := range other.Require {
		if version, ok := versions[r.Mod.Path]; ok && semver.Compare(r.Mod.Version, version) > 0 {
			later = append(later, r.Mod)
		}
	}
	return later
}
