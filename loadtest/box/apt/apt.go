// Package apt installs the Debian packages that the box needs on the machine.
package apt

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const timeout = 10 * time.Minute

// Tool is a program, by its name on the PATH, or any file, by its absolute path,
// and the Debian package that provides it.
type Tool struct{ Program, Package string }

func (t Tool) there() bool {
	if filepath.IsAbs(t.Program) {
		_, err := os.Stat(t.Program)
		return err == nil
	}
	_, err := exec.LookPath(t.Program)
	return err == nil
}

// Missing returns the tools that the machine lacks.
func Missing(tools []Tool) []Tool {
	return slices.DeleteFunc(slices.Clone(tools), Tool.there)
}

// Ensure installs the packages of the tools that the machine lacks.
func Ensure(ctx context.Context, log func(format string, args ...any), tools ...Tool) error {
	var packages []string
	for _, t := range Missing(tools) {
		packages = append(packages, t.Package)
	}
	if len(packages) == 0 {
		return nil
	}
	slices.Sort(packages)
	packages = slices.Compact(packages)
	if os.Geteuid() != 0 {
		return fmt.Errorf("this machine lacks the Debian packages %[1]s, and only root can install them: apt-get install %[1]s", strings.Join(packages, " "))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	log("installing the Debian packages %s", strings.Join(packages, ", "))
	if err := aptGet(ctx, "update", "-qq"); err != nil {
		return err
	}
	if err := aptGet(ctx, append([]string{"install", "-y", "-qq", "--no-install-recommends"}, packages...)...); err != nil {
		return err
	}
	if still := Missing(tools); len(still) > 0 {
		return fmt.Errorf("%s is still missing after the package %s was installed", still[0].Program, still[0].Package)
	}
	return nil
}

func aptGet(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
