package trace

// Azure2019 has the statistics of 100 functions of the Azure Functions 2019 trace
// (Shahrad et al., Serverless in the Wild, ATC '20; CC-BY) over 480 minutes, as
// sampled for the vHive load generator. `trace stats` printed them, with Measure,
// for that slice; here they are rounded to three digits. In words:
//
//   - 44 functions are called by timers, 36 by HTTP, 13 by queues, 7 by others.
//     Timers and others are two groups, because they differ in rate and
//     regularity.
//   - 25 functions are called less than once an hour, 81 less than once a minute,
//     98 less than 60 times a minute: the rate classes. The busiest one has 80 %
//     of all 339,657 calls, the second 8 %.
//   - Calls that no clock makes come in bursts: for the median of the 22
//     functions called often enough to tell, their variance per minute is 3 times
//     their mean, and for one in twenty 49 times.
//   - The median duration of a function is 0.3 s for the median of the timers,
//     0.2 s for that of the others, and 15 s or more for one in twenty. Within a
//     function, the 75th percentile is 1.9 times the 25th, and the 99th is 4.8
//     times the median.
//
// A slice of 100 says little about the far tails; `trace stats` computes the
// statistics of any part of the data set.
var Azure2019 = Stats{
	Functions: 100,
	Minutes:   480,
	Timers: Group{
		Share:      0.44,
		Rates:      RateClasses{6.0 / 44, 30.0 / 44, 7.0 / 44, 1.0 / 44},
		Dispersion: Quantiles{0, 0, 0.457, 0.798, 0.8, 0.857, 0.9},
		MedianMS:   Quantiles{0, 0, 15, 332, 1840, 17_500, 54_600},
	},
	Others: Group{
		Share:      0.56,
		Rates:      RateClasses{19.0 / 56, 26.0 / 56, 10.0 / 56, 1.0 / 56},
		Dispersion: Quantiles{0.00104, 0.0109, 0.8, 3.07, 9.35, 49.3, 84.6},
		MedianMS:   Quantiles{0, 4.25, 31.8, 188, 1980, 15_100, 145_000},
	},
	Middle:   Quantiles{0, 0, 0.296, 0.862, 3.3, 18.8, 173},
	Tail:     Quantiles{0, 0, 0.912, 3.77, 17.2, 147, 1260},
	MemoryMB: Quantiles{2.96, 6.15, 22.5, 55.7, 116, 195, 301},
}
