package main

import (
	"fmt"

	"libra.dev/libra/loadtest/demo/evaluation"
)

// reportAgain writes the report of what was written down.
func reportAgain(d *demo) error {
	data, err := evaluation.ReadFile(d.path(evaluation.DataFile))
	if err != nil {
		return err
	}
	return writeReport(d, data)
}

// writeReport writes the report and prints its table.
func writeReport(d *demo, data evaluation.Data) error {
	fmt.Fprintf(d.out, "\n%d blocks: %s\n", len(data.Blocks), d.path(evaluation.DataFile))
	return nil
}
