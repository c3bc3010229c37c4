package pressure

import (
	"bytes"
	"errors"
	"path/filepath"
	"time"
)

func nodePressure(procRoot string) string { return filepath.Join(procRoot, "pressure", "cpu") }

// parsePressure returns how long some thread or another waited, from the text of a pressure file:
// "some avg10=0.00 avg60=0.00 avg300=0.00 total=123" in microseconds.
func parsePressure(text []byte) (time.Duration, error) {
	some, _, _ := bytes.Cut(text, []byte("\n"))
	_, total, ok := bytes.Cut(some, []byte("total="))
	if !ok || !bytes.HasPrefix(some, []byte("some ")) {
		return 0, errors.New(`the first line is not "some ... total=<microseconds>"`)
	}
	n, err := number(total)
	return time.Duration(n) * time.Microsecond, err
}
