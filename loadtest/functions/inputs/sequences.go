package inputs

import (
	"fmt"
	"math/rand/v2"
)

const lineBases = 70

// rises says, in half units, how much higher a curve is after each base, and at
// the point in between.
var rises = [256]struct{ between, after int }{
	'A': {1, 0}, 'C': {-1, 0}, 'G': {1, 2}, 'T': {-1, -2}, 'N': {0, 0},
}

// sequences makes a FASTA file of up to four sequences. As on a chromosome, some
// long stretches have more of G than of C, and others less.
func sequences(rng *rand.Rand, size sizer) Input {
	bases, records := size(rng, 32<<10, 1<<20), uniform(rng, 1, 4)
	var body []byte
	var gc, unknown, highest, lowest, ends int
	for r := range records {
		body = fmt.Appendf(body, ">sequence-%d of %d\n", r+1, records)
		length := (r+1)*bases/records - r*bases/records
		height := 0
		letters := "ACGT"
		for i := range length {
			if i%4096 == 0 {
				letters = []string{"AACGTT", "ACCGTT", "ACGGGT", "AACGTTTT"}[rng.IntN(4)]
			}
			base := letters[rng.IntN(len(letters))]
			if rng.IntN(1000) == 0 {
				base = 'N'
				unknown++
			}
			if base == 'G' || base == 'C' {
				gc++
			}
			rise := rises[base]
			between := height + rise.between
			height += rise.after
			highest, lowest = max(highest, between, height), min(lowest, between, height)
			// Repeats are in lower case.
			if i/512%4 == 3 {
				base |= 0x20
			}
			if body = append(body, base); i%lineBases == lineBases-1 {
				body = append(body, '\n')
			}
		}
		if length%lineBases != 0 {
			body = append(body, '\n')
		}
		ends += height
	}
	return Input{Body: body, Expect: map[string]int64{
		"records": int64(records), "bases": int64(bases), "gc": int64(gc), "unknown": int64(unknown),
		"highest": int64(highest), "lowest": int64(lowest), "ends": int64(ends), "points": int64(2*bases + records),
	}}
}
