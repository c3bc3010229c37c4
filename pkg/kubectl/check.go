package kubectl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/kubectl/check"
)

// Exit codes of check.
const (
	exitFound      = 1 // there is an error
	exitNotChecked = 2 // the arguments are wrong, or the API server does not answer
)

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	error
}

func (e *exitError) Unwrap() error { return e.error }

// ExitCode returns the exit code of a command that returned err.
func ExitCode(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.code
	default:
		return 1
	}
}

// checkTimeout is how long each check may take, unless --timeout says otherwise.
const checkTimeout = 15 * time.Second

type checkFlags struct {
	output
	scope
	beforeInstall bool
	timeout       time.Duration
}

func newCheck(o *options) *cobra.Command {
	f := checkFlags{timeout: checkTimeout}
	cmd := &cobra.Command{
		Use:     "check",
		GroupID: groupInstall,
		Short:   "Look for problems that keep Libra from working, or from working safely",
		Long: `Look for problems that would keep Libra from working on this cluster, or let it do harm there, and say how to fix them.

The command only reads, and works before and after Libra is installed. It exits with 1 if it finds an error, and with 2
if it could not check anything.`,
		Example: `  # the cluster, and the functions in all namespaces
  kubectl libra check --all-namespaces

  # also the findings that are ok, one line each
  kubectl libra check -n shop -o wide`,
		Args: func(cmd *cobra.Command, args []string) error { return notChecked(cobra.NoArgs(cmd, args)) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.output.check(); err != nil {
				return notChecked(err)
			}
			if err := hasTime(f.timeout, checkTimeout); err != nil {
				return notChecked(err)
			}
			report, err := o.check(cmd, f)
			if err != nil {
				return notChecked(err)
			}
			if err := f.print(o.Out, report); err != nil {
				return err
			}
			if n := report.count(check.Error); n > 0 {
				return &exitError{exitFound, fmt.Errorf("found %s", several(n, "error"))}
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return notChecked(err) })
	f.output.addFlag(cmd)
	f.scope.addFlag(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.beforeInstall, "before-install", false, "do not look at Libra's own parts, even if Libra is installed")
	flags.DurationVar(&f.timeout, "timeout", f.timeout, "how long each check may take")
	return cmd
}

// hasTime returns an error if a --timeout leaves no time to do anything.
func hasTime(timeout, such time.Duration) error {
	if timeout <= 0 {
		return fmt.Errorf("--timeout is %v, want more than 0s, such as %v", timeout, such)
	}
	return nil
}

func notChecked(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{exitNotChecked, err}
}

// checkReport is what check prints.
type checkReport struct {
	// Installed says that Libra's own parts were looked at.
	Installed bool            `json:"installed"`
	Findings  []check.Finding `json:"findings"`
}

func (r checkReport) count(of check.Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity == of {
			n++
		}
	}
	return n
}

func (o *options) check(cmd *cobra.Command, f checkFlags) (checkReport, error) {
	config, err := o.flags.ToRESTConfig()
	if err != nil {
		return checkReport{}, fmt.Errorf("loading the client configuration: %w", err)
	}
	namespace, err := o.namespaceOf(f.scope)
	if err != nil {
		return checkReport{}, err
	}
	cluster, err := check.NewCluster(config, namespace)
	if err != nil {
		return checkReport{}, err
	}
	cluster.Installed = cluster.Installed && !f.beforeInstall
	runner := check.Runner{Clock: clock.RealClock{}, Timeout: f.timeout, Progress: func(line string) { _, _ = fmt.Fprintln(o.ErrOut, line) }}
	return checkReport{cluster.Installed, runner.Run(cmd.Context(), cluster, check.Registry())}, nil
}

// print does not make a document of it: there, the API's printers would escape remedies, which users type as they are.
func (f checkFlags) print(to io.Writer, report checkReport) error {
	switch f.format {
	case "json":
		encoder := json.NewEncoder(to)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(report)
	case "yaml":
		text, err := yaml.Marshal(report)
		if err != nil {
			return err
		}
		_, err = to.Write(text)
		return err
	}
	return report.table(to, f.format == outputWide)
}

// table writes a line for each finding, then the remedies. Findings that are
// fine show only in a wide table.
func (r checkReport) table(to io.Writer, wide bool) error {
	text := &strings.Builder{}
	w := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	shown := slices.DeleteFunc(slices.Clone(r.Findings), func(f check.Finding) bool { return f.Severity == check.OK && !wide })
	if len(shown) > 0 {
		_, _ = fmt.Fprintln(w, "SEVERITY\tCHECK\tOBJECT\tFINDING")
	}
	for _, f := range shown {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Severity, f.Check, f.Object, oneLine(f.Message))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	remedies, of := r.remedies()
	for i, remedy := range remedies {
		if i == 0 {
			text.WriteString("\nCommands to run, or lines to add:\n")
		}
		fmt.Fprintf(text, "\n# %s\n%s\n", strings.Join(of[remedy], "; "), remedy)
	}
	if len(shown) > 0 {
		text.WriteString("\n")
	}
	fmt.Fprintf(text, "%s: %s, %s, %d ok\n", map[bool]string{true: "Libra is installed", false: "Libra's own parts were not looked at"}[r.Installed],
		several(r.count(check.Error), "error"), several(r.count(check.Warning), "warning"), r.count(check.OK))
	_, err := io.WriteString(to, text.String())
	return err
}

// remedies returns each remedy once, in the order of findings, and what each is for.
func (r checkReport) remedies() (remedies []string, of map[string][]string) {
	of = map[string][]string{}
	for _, f := range r.Findings {
		if f.Remedy == "" {
			continue
		}
		if of[f.Remedy] == nil {
			remedies = append(remedies, f.Remedy)
		}
		of[f.Remedy] = append(of[f.Remedy], f.Check+", "+f.Object.String())
	}
	return remedies, of
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func several(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
