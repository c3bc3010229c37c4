package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"libra.dev/libra/loadtest/demo/evaluation"
)

// keep writes down all that was measured.
func (e *evaluate) keep(data evaluation.Data) error {
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode what was measured: %w", err)
	}
	return os.WriteFile(e.path(dataFile), text, 0o644)
}

// readData reads what was written down.
func readData(file string) (data evaluation.Data, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return data, err
	}
	if err := json.Unmarshal(text, &data); err != nil {
		return data, fmt.Errorf("%s is not what an evaluation writes: %w", file, err)
	}
	return data, nil
}

// reportAgain writes the report of what was written down.
func reportAgain(d *demo, beside string) error {
	data, err := readData(d.path(dataFile))
	if err != nil {
		return err
	}
	return writeReport(d, data, beside)
}

// writeReport writes the report and prints the table. Beside is the file of the evaluation
// that this one is compared with, or empty.
func writeReport(d *demo, data evaluation.Data, beside string) error {
	c := evaluation.Compare(data)
	if beside != "" {
		other, err := readData(beside)
		if err != nil {
			return fmt.Errorf("--beside: %w", err)
		}
		agreement := evaluation.Agree(data, c, other)
		c.Agreement = &agreement
	}
	heading := evaluation.Heading{Title: "The evaluation of section 8.3 of the LIBRA paper"}
	if err := errors.Join(
		evaluation.ResultsOf(data, c).Write(d.outDir),
		evaluation.WritePage(d.outDir, heading, data, c),
		evaluation.WriteMarkdown(d.outDir, heading, data, c)); err != nil {
		return err
	}
	fmt.Fprintln(d.out)
	if err := evaluation.WriteTable(d.out, data, c); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\nReport: %s\n", d.path(evaluation.PageFile))
	return nil
}
