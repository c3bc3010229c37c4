package main

import "time"

// pace is how thorough an evaluation is before its blocks, and about how long that takes.
type pace struct {
	// inputs is the number of inputs of each function; fewer are sooner run alone. lessons is
	// the number of other inputs that Libra learns from.
	inputs, lessons int
	// platform is the length of one measurement of the node without requests, calibrate of
	// one with requests, and warm how long each arm's functions work before the first block.
	platform, calibrate, warm time.Duration
	// opening is the time to install Libra, run each input alone and measure what a request
	// costs; closing is the time to put everything back and write the report.
	opening, closing time.Duration
}

var (
	fullPace  = pace{40, 60, 5 * time.Second, 15 * time.Second, 5 * time.Second, openingTime, closingTime}
	quickPace = pace{12, 60, 5 * time.Second, 10 * time.Second, 5 * time.Second, quickOpeningTime, quickClosingTime}
	// demoPace's opening includes installing the functions and teaching them to Libra.
	demoPace = pace{6, 20, 3 * time.Second, 6 * time.Second, 4 * time.Second, 140 * time.Second, 10 * time.Second}
)
