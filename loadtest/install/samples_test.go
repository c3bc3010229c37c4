//go:build install

package install

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// samples is the namespace of libra-samples.yaml.
const samples = "libra-samples"

var failedOfURL = regexp.MustCompile(`(?m)^http\S+: \d+ requests were answered, (\d+) failed$`)

// failedOfJob returns how many requests of the samples' own load have failed so far. It waits for the next report on all
// functions, which comes once a minute.
func (u *user) failedOfJob() (failed int) {
	u.Helper()
	reports := func() [][]string {
		out, err := u.try("kubectl -n " + samples + " logs job/load --tail=-1")
		if err != nil {
			u.Fatalf("the log of the samples' load: %v: %s", err, out)
		}
		return failedOfURL.FindAllStringSubmatch(out, -1)
	}
	before := len(reports())
	var now [][]string
	u.until(2*time.Minute, "a report of the samples' load", func() error {
		if now = reports(); len(now) < before+2 { // one for each function
			return fmt.Errorf("there are %d lines of reports, as before", len(now))
		}
		return nil
	})
	for _, of := range now[len(now)-2:] {
		n, err := strconv.Atoi(of[1])
		if err != nil {
			u.Fatal(err)
		}
		failed += n
	}
	return failed
}
