package trace

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Source is one of the data set's files.
type Source struct {
	Name string // for errors
	io.Reader
}

// Load reads a day, or a part of one, in the format of the Azure Functions 2019
// data set: invocations per function and minute, percentiles of durations per
// function, and memory per app. It finds columns by name. If a function is in a
// file several times, Load adds up its invocations (a row is one trigger), and
// takes the durations of the most calls. It leaves out and counts functions that
// were never called or have no usable durations.
//
// Load returns an error that names file, line and column if a file is not of
// this format.
func Load(invocations, durations, memory Source) (Trace, error) {
	took, err := loadDurations(durations)
	if err != nil {
		return Trace{}, err
	}
	megabytes, err := loadMemory(memory)
	if err != nil {
		return Trace{}, err
	}
	t, err := loadInvocations(invocations)
	if err != nil {
		return Trace{}, err
	}
	drop := func(reason string) bool { t.Dropped[reason]++; return true }
	t.Functions = slices.DeleteFunc(t.Functions, func(f Function) bool {
		d, known := took[f.ID]
		switch {
		case f.total(0, t.Minutes) == 0:
			return drop("never called")
		case !known:
			return drop("no durations")
		case d.check() != nil:
			return drop("invalid duration percentiles")
		}
		return false
	})
	for i := range t.Functions {
		f := &t.Functions[i]
		f.Durations = took[f.ID].Durations
		f.MemoryMB = megabytes[f.ID[:strings.LastIndex(f.ID, "/")]]
	}
	if len(t.Functions) == 0 {
		return Trace{}, fmt.Errorf("no function of %s has invocations and, in %s, durations: are the files of the same day?", invocations.Name, durations.Name)
	}
	return t, nil
}

const ownerColumn, appColumn, functionColumn = "HashOwner", "HashApp", "HashFunction"

func loadInvocations(s Source) (Trace, error) {
	tb, err := readHeader(s, ownerColumn, appColumn, functionColumn, "Trigger")
	if err != nil {
		return Trace{}, err
	}
	first, columns, err := tb.minutes()
	if err != nil {
		return Trace{}, err
	}
	t := Trace{First: first, Minutes: len(columns), Dropped: map[string]int{}}
	index := map[string]int{}
	err = tb.each(func(r row) error {
		id := r.id(ownerColumn, appColumn, functionColumn)
		i, seen := index[id]
		if !seen {
			i = len(t.Functions)
			index[id] = i
			t.Functions = append(t.Functions, Function{ID: id, Trigger: r.text("Trigger"), PerMinute: make([]int32, len(columns))})
		}
		for m, column := range columns {
			n, err := strconv.ParseInt(r.fields[column], 10, 32)
			if err != nil || n < 0 {
				return r.wrong(column, "a number of invocations, 0 or more")
			}
			t.Functions[i].PerMinute[m] += int32(n)
		}
		return nil
	})
	return t, err
}

// durationsOf has percentiles, and the number of calls that they are from.
type durationsOf struct {
	Durations
	calls float64
}

func loadDurations(s Source) (map[string]durationsOf, error) {
	var names []string
	for _, rank := range durationRanks {
		names = append(names, fmt.Sprintf("percentile_Average_%d", int(math.Round(rank*100))))
	}
	tb, err := readHeader(s, append([]string{ownerColumn, appColumn, functionColumn, "Count"}, names...)...)
	if err != nil {
		return nil, err
	}
	all := map[string]durationsOf{}
	err = tb.each(func(r row) error {
		var d durationsOf
		var err error
		if d.calls, err = r.number("Count"); err != nil {
			return err
		}
		for i, name := range names {
			if d.Durations[i], err = r.number(name); err != nil {
				return err
			}
		}
		id := r.id(ownerColumn, appColumn, functionColumn)
		if before, seen := all[id]; !seen || d.calls > before.calls {
			all[id] = d
		}
		return nil
	})
	return all, err
}

func loadMemory(s Source) (map[string]float64, error) {
	const average = "AverageAllocatedMb"
	tb, err := readHeader(s, ownerColumn, appColumn, average)
	if err != nil {
		return nil, err
	}
	all := map[string]float64{}
	err = tb.each(func(r row) error {
		mb, err := r.number(average)
		if err != nil {
			return err
		}
		all[r.id(ownerColumn, appColumn)] = mb
		return nil
	})
	return all, err
}

// table is a CSV file whose first line names the columns.
type table struct {
	name    string
	reader  *csv.Reader
	header  []string
	columns map[string]int
}

func readHeader(s Source, wanted ...string) (*table, error) {
	r := csv.NewReader(s)
	r.ReuseRecord = true
	header, err := r.Read()
	if errors.Is(err, io.EOF) {
		err = errors.New("it is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	t := &table{name: s.Name, reader: r, header: slices.Clone(header), columns: map[string]int{}}
	for i, name := range t.header {
		t.columns[name] = i
	}
	for _, name := range wanted {
		if _, ok := t.columns[name]; !ok {
			return nil, fmt.Errorf("%s: there is no column %s; the columns must be those of the Azure Functions 2019 data set, including %s",
				s.Name, name, strings.Join(wanted, ", "))
		}
	}
	return t, nil
}

// minutes returns the number of the first minute and the columns of all.
func (t *table) minutes() (int, []int, error) {
	first, columns := 0, []int(nil)
	for i, name := range t.header {
		minute, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if columns == nil {
			first = minute
		}
		if minute != first+len(columns) {
			return 0, nil, fmt.Errorf("%s: column %d is minute %d, after minute %d; the minutes must be consecutive", t.name, i+1, minute, first+len(columns)-1)
		}
		columns = append(columns, i)
	}
	if columns == nil {
		return 0, nil, fmt.Errorf("%s: no column has a number as its name; the columns of the minutes must be named 1, 2, 3 to 1440", t.name)
	}
	return first, columns, nil
}

// row is one line of a table.
type row struct {
	*table
	fields []string
}

func (t *table) each(do func(row) error) error {
	for {
		fields, err := t.reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		if err := do(row{t, fields}); err != nil {
			return err
		}
	}
}

func (r row) text(column string) string { return strings.Clone(r.fields[r.columns[column]]) }

func (r row) id(columns ...string) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		parts[i] = r.fields[r.columns[c]]
	}
	return strings.Join(parts, "/")
}

func (r row) number(column string) (float64, error) {
	i := r.columns[column]
	v, err := strconv.ParseFloat(r.fields[i], 64)
	if err != nil || math.IsNaN(v) {
		return 0, r.wrong(i, "a number")
	}
	return v, nil
}

func (r row) wrong(column int, accepted string) error {
	line, _ := r.reader.FieldPos(column)
	return fmt.Errorf("%s, line %d: %s is %q; it must be %s", r.name, line, r.header[column], r.fields[column], accepted)
}
