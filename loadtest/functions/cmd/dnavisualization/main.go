// Command dnavisualization draws the DNA sequences of the FASTA file in the body
// as curves (DV in LIBRA's Table 1): each base moves the pen to the right, and up
// and down in its own way, so that the eye sees what a sequence is made of. The
// drawing is a compressed SVG. A long sequence keeps every core busy that its
// container may use.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"strconv"

	"libra.dev/libra/loadtest/functions/parallel"
	"libra.dev/libra/loadtest/functions/server"
)

const (
	maxBytes   = 8 << 20
	maxRecords = 1000
	blockBases = 16 << 10
	// A worker is worth starting for this much of the sequences.
	basesPerWorker = 64 << 10
)

// turns are the two steps of the pen for each base, each half a unit to the right.
// An unknown base (N) goes straight on.
var turns = [256][2]int{'A': {1, -1}, 'C': {-1, 1}, 'G': {1, 1}, 'T': {-1, -1}}

type result struct {
	Records int `json:"records"`
	Bases   int `json:"bases"`
	GC      int `json:"gc"`      // bases that are G or C
	Unknown int `json:"unknown"` // bases that are N
	// Highest and Lowest are the heights that the curves reach, and Ends the sum
	// of the heights at which they end, in half units.
	Highest int    `json:"highest"`
	Lowest  int    `json:"lowest"`
	Ends    int    `json:"ends"`
	Points  int    `json:"points"`
	SVG     int    `json:"svg_bytes"` // before it is compressed
	Bytes   int    `json:"svgz_bytes"`
	CRC32   uint32 `json:"svgz_crc32"`
}

// block is a part of one sequence.
type block struct {
	bases      []byte
	record     int
	start      int // bases before it in its sequence
	last       bool
	from       int // the height it starts at
	gc, n      int
	rise       int
	high, low  int // relative to from
	drawn      []byte
	drawnBytes int // before compression
}

func work(ctx context.Context, body []byte) (any, error) {
	if len(body) > maxBytes {
		return nil, server.BadRequestError{Err: fmt.Errorf("the body has %d bytes; it must be at most %d", len(body), maxBytes)}
	}
	sequences, err := parse(body)
	if err != nil {
		return nil, server.BadRequestError{Err: fmt.Errorf("the body is not a FASTA file: %w", err)}
	}
	did, _, err := visualize(ctx, sequences, parallel.Workers(len(body), basesPerWorker))
	return did, err
}

// parse returns the sequences, in capitals.
func parse(body []byte) ([][]byte, error) {
	var sequences [][]byte
	number := 0
	for line := range bytes.Lines(body) {
		number++
		line = bytes.TrimRight(line, "\r\n")
		if bytes.HasPrefix(line, []byte{'>'}) {
			if sequences = append(sequences, nil); len(sequences) > maxRecords {
				return nil, fmt.Errorf("line %d starts another sequence; there must be at most %d", number, maxRecords)
			}
			continue
		}
		if len(line) > 0 && len(sequences) == 0 {
			return nil, fmt.Errorf("line %d is %.20q; the first must be a description that starts with >", number, line)
		}
		for column, b := range line {
			switch b &^ 0x20 {
			case 'A', 'C', 'G', 'T', 'N':
				sequences[len(sequences)-1] = append(sequences[len(sequences)-1], b&^0x20)
			default:
				return nil, fmt.Errorf("line %d, column %d has %q; bases are A, C, G, T and N", number, column+1, b)
			}
		}
	}
	if len(sequences) == 0 {
		return nil, errors.New("it has no sequence")
	}
	return sequences, nil
}

// visualize returns what it did, and the drawing.
func visualize(ctx context.Context, sequences [][]byte, workers int) (result, []byte, error) {
	did := result{Records: len(sequences)}
	blocks := split(sequences)
	err := parallel.Do(ctx, workers, len(blocks), func(i int) error { blocks[i].survey(); return nil })
	if err != nil {
		return did, nil, err
	}
	for i := range blocks {
		b := &blocks[i]
		if b.start > 0 {
			b.from = blocks[i-1].from + blocks[i-1].rise
		}
		did.Bases += len(b.bases)
		did.GC += b.gc
		did.Unknown += b.n
		did.Highest, did.Lowest = max(did.Highest, b.from+b.high), min(did.Lowest, b.from+b.low)
		if b.last {
			did.Ends += b.from + b.rise
		}
	}
	did.Points = 2*did.Bases + did.Records
	if err := parallel.Do(ctx, workers, len(blocks), func(i int) error { return blocks[i].draw() }); err != nil {
		return did, nil, err
	}
	longest := 0
	for _, s := range sequences {
		longest = max(longest, len(s))
	}
	head := fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 %d %d %d"><g fill="none" stroke="black">`,
		did.Lowest, 2*longest, did.Highest-did.Lowest)
	var drawing bytes.Buffer
	if err := compress(&drawing, head); err != nil {
		return did, nil, err
	}
	did.SVG = len(head)
	for _, b := range blocks {
		drawing.Write(b.drawn)
		did.SVG += b.drawnBytes
	}
	tail := []byte(`</g></svg>`)
	if err := compress(&drawing, tail); err != nil {
		return did, nil, err
	}
	did.SVG += len(tail)
	did.Bytes, did.CRC32 = drawing.Len(), crc32.ChecksumIEEE(drawing.Bytes())
	return did, drawing.Bytes(), nil
}

// split cuts the sequences into blocks. An empty sequence has one, too.
func split(sequences [][]byte) []block {
	var blocks []block
	for record, s := range sequences {
		for start := 0; start == 0 || start < len(s); start += blockBases {
			end := min(start+blockBases, len(s))
			blocks = append(blocks, block{bases: s[start:end], record: record, start: start, last: end == len(s)})
		}
	}
	return blocks
}

// survey counts what the drawing needs to know before it starts.
func (b *block) survey() {
	height := 0
	for _, base := range b.bases {
		switch base {
		case 'G', 'C':
			b.gc++
		case 'N':
			b.n++
		}
		for _, turn := range turns[base] {
			height += turn
			b.high, b.low = max(b.high, height), min(b.low, height)
		}
	}
	b.rise = height
}

// draw compresses the block's part of the drawing into a gzip member.
func (b *block) draw() error {
	text := make([]byte, 0, 24*len(b.bases)+64)
	if b.start == 0 {
		text = fmt.Appendf(text, `<path id="s%d" d="M0 0`, b.record)
	}
	x, y := 2*b.start, b.from
	for _, base := range b.bases {
		for _, turn := range turns[base] {
			x, y = x+1, y+turn
			text = append(strconv.AppendInt(append(text, 'L'), int64(x), 10), ' ')
			text = strconv.AppendInt(text, int64(y), 10)
		}
	}
	if b.last {
		text = append(text, `"/>`...)
	}
	b.drawnBytes = len(text)
	var member bytes.Buffer
	err := compress(&member, text)
	b.drawn = member.Bytes()
	return err
}

func compress(to *bytes.Buffer, text []byte) error {
	z, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if _, err := z.Write(text); err != nil {
		return err
	}
	return z.Close()
}

func main() { server.Main(server.Handler(work), net.ListenConfig{}) }
