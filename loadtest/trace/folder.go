package trace

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// LoadFolder is Load of the files of one day in a folder. It takes the one whose name
// has "invocations" in it, "durations" and "memory".
func LoadFolder(dir string) (Trace, error) {
	var sources []Source
	for _, kind := range []string{"invocations", "durations", "memory"} {
		paths, err := filepath.Glob(filepath.Join(dir, "*"+kind+"*.csv"))
		if err != nil {
			return Trace{}, err
		}
		if len(paths) != 1 {
			return Trace{}, fmt.Errorf("%s has %d files *%s*.csv (%s); it must have one, of one day of the data set, see docs/loadtest.md",
				dir, len(paths), kind, strings.Join(paths, ", "))
		}
		f, err := os.Open(paths[0])
		if err != nil {
			return Trace{}, err
		}
		defer f.Close()
		sources = append(sources, Source{Name: paths[0], Reader: f})
	}
	return Load(sources[0], sources[1], sources[2])
}
