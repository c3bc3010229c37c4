package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"libra.dev/libra/loadtest/functions/inputs/inputstest"
	"libra.dev/libra/loadtest/functions/server"
)

func TestDrawingOfAKnownSequence(t *testing.T) {
	sequences, err := parse([]byte(">a\nGa\ntN\r\n>b\n"))
	if err != nil {
		t.Fatal(err)
	}
	did, drawing, err := visualize(context.Background(), sequences, 2)
	if err != nil {
		t.Fatal(err)
	}
	want := `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 3"><g fill="none" stroke="black">` +
		`<path id="s0" d="M0 0L1 1L2 2L3 3L4 2L5 1L6 0L7 0L8 0"/><path id="s1" d="M0 0"/></g></svg>`
	if got := unpacked(t, drawing); got != want {
		t.Errorf("drew\n%s\nwant\n%s", got, want)
	}
	if did.Records != 2 || did.Bases != 4 || did.GC != 1 || did.Unknown != 1 || did.Highest != 3 || did.Lowest != 0 || did.Ends != 0 || did.SVG != len(want) {
		t.Errorf("it says it did %+v", did)
	}
}

func unpacked(t interface{ Fatal(...any) }, drawing []byte) string {
	z, err := gzip.NewReader(bytes.NewReader(drawing))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDrawingIsTheSameForAnyNumberOfWorkersAndHasEveryPoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sequences [][]byte
		for range rapid.IntRange(1, 3).Draw(t, "records") {
			length := rapid.SampledFrom([]int{0, 1, 17, blockBases, blockBases + 3}).Draw(t, "bases")
			unit := []byte(rapid.StringMatching(`[ACGTN]{1,9}`).Draw(t, "unit"))
			sequences = append(sequences, bytes.Repeat(unit, length/len(unit)+1)[:length])
		}
		did, one, err := visualize(context.Background(), sequences, 1)
		if err != nil {
			t.Fatal(err)
		}
		again, three, err := visualize(context.Background(), sequences, 3)
		if err != nil {
			t.Fatal(err)
		}
		if did != again || !bytes.Equal(one, three) {
			t.Fatalf("three workers did %+v, one %+v", again, did)
		}
		var svg struct {
			Paths []struct {
				D string `xml:"d,attr"`
			} `xml:"g>path"`
		}
		if err := xml.Unmarshal([]byte(unpacked(t, one)), &svg); err != nil {
			t.Fatal(err)
		}
		points, ends := 0, 0
		for _, p := range svg.Paths {
			at := strings.Split(p.D[1:], "L")
			points += len(at)
			var x, y int
			if _, err := fmt.Sscan(at[len(at)-1], &x, &y); err != nil {
				t.Fatal(err)
			}
			ends += y
		}
		if points != did.Points || ends != did.Ends || len(svg.Paths) != did.Records {
			t.Fatalf("the drawing has %d paths of %d points that end at %d; it says it did %+v", len(svg.Paths), points, ends, did)
		}
	})
}

func TestWorkSaysWhatTheSequencesAre(t *testing.T) {
	inputstest.Check(t, "dnavisualization", 3, work)
}

func TestWorkRefuses(t *testing.T) {
	for want, body := range map[string]string{
		"no sequence": "",
		`line 2 is "ACGT"; the first must be a d`: "\nACGT",
		`line 3, column 4 has 'X'`:                ">a\nACGT\nACGX\n",
		"line 1001 starts another":                strings.Repeat(">\n", maxRecords+1),
		"at most 8388608":                         ">a\n" + strings.Repeat("A", maxBytes),
	} {
		_, err := work(context.Background(), []byte(body))
		if !errors.As(err, &server.BadRequestError{}) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a bad request that says %q", err, want)
		}
	}
}
