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

// reportAgain writes the report of what was written down.
func reportAgain(d *demo) error {
	text, err := os.ReadFile(d.path(dataFile))
	if err != nil {
		return err
	}
	var data evaluation.Data
	if err := json.Unmarshal(text, &data); err != nil {
		return fmt.Errorf("%s: %w", d.path(dataFile), err)
	}
	return writeReport(d, data)
}

// writeReport writes the report and prints the table.
func writeReport(d *demo, data evaluation.Data) error {
	c := evaluation.Compare(data)
	if err := errors.Join(
		evaluation.ResultsOf(data, c).Write(d.outDir),
		evaluation.WritePage(d.outDir, data, c),
		evaluation.WriteMarkdown(d.outDir, data, c)); err != nil {
		return err
	}
	fmt.Fprintln(d.out)
	if err := evaluation.WriteTable(d.out, data, c); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\nReport: %s\n", d.path(evaluation.PageFile))
	return nil
}
