//go:build install

package install

import (
	"regexp"
	"strconv"
)

// samples is the namespace of libra-samples.yaml.
const samples = "libra-samples"

var failedOfURL = regexp.MustCompile(`(?m)^http\S+: \d+ requests were answered, (\d+) failed$`)

// failedOfJob is how many requests of the samples' own load failed, as its last report has it.
func (u *user) failedOfJob() (failed int) {
	u.Helper()
	reports := failedOfURL.FindAllStringSubmatch(u.sh("kubectl -n "+samples+" logs job/load --tail=20"), -1)
	if len(reports) < 2 {
		u.Error("the samples' load reports nothing")
		return 0
	}
	for _, of := range reports[len(reports)-2:] { // one for each function
		n, err := strconv.Atoi(of[1])
		if err != nil {
			u.Fatal(err)
		}
		failed += n
	}
	return failed
}
