package main

import "time"

// pace is how thorough an evaluation is before its blocks, and how long about that takes.
type pace struct {
	// inputs are so many of each function; fewer are run alone sooner. Libra learns from as
	// many other ones as lessons.
	inputs, lessons int
	// platform is how long the node is looked at without requests at a time, calibrate how
	// long with them, and warm how long each arm's functions work before the first block.
	platform, calibrate, warm time.Duration
	// opening is what it takes to install Libra, to run each input alone and to find out what
	// a request costs, and closing to put everything back and to write the report.
	opening, closing time.Duration
}

var (
	fullPace  = pace{40, 60, 5 * time.Second, 15 * time.Second, 5 * time.Second, openingTime, closingTime}
	quickPace = pace{12, 60, 5 * time.Second, 10 * time.Second, 5 * time.Second, quickOpeningTime, quickClosingTime}
	// demoPace's opening brings the functions, too, and teaches them to Libra.
	demoPace = pace{6, 20, 3 * time.Second, 6 * time.Second, 4 * time.Second, 140 * time.Second, 10 * time.Second}
)
