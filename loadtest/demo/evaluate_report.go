package main

import "libra.dev/libra/loadtest/demo/evaluation"

// reportAgain writes the report of an earlier evaluation.
func reportAgain(d *demo, write func(*demo, evaluation.Data) error) error {
	data, err := evaluation.ReadFile(d.path(evaluation.DataFile))
	if err != nil {
		return err
	}
	return write(d, data)
}

// writeReport writes the report and prints its table.
func writeReport(d *demo, data evaluation.Data) error {
	return evaluation.WriteReport(d.outDir, d.out, "Stock, no limits, VPA and Libra", data)
}
