package duplicator

import (
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestMemoryIsBounded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		k := newKeeper(t)
		now := k.clock.Now()
		type reserved struct {
			key    key
			length int64
		}
		var inFlight []reserved
		var jobs []job
		rt.Repeat(map[string]func(*rapid.T){
			"reserve": func(rt *rapid.T) {
				rev := newRevision(rapid.StringMatching(`[a-z]{1,2}`).Draw(rt, "name"))
				length := rapid.Int64Range(1, maxBody).Draw(rt, "length")
				if ok, _ := k.inputs.reserve(rev, length, now); ok {
					inFlight = append(inFlight, reserved{keyOf(rev), length})
				}
			},
			"answer": func(rt *rapid.T) {
				for _, asked := range k.inputs.toAsk() {
					k.inputs.answer(asked, standing{wanted: true}, now)
				}
			},
			"keep": func(rt *rapid.T) {
				if len(inFlight) > 0 {
					k.inputs.keep(inFlight[0].key, input{body: make([]byte, inFlight[0].length)}, now)
					inFlight = inFlight[1:]
				}
			},
			"abandon": func(rt *rapid.T) {
				if len(inFlight) > 0 {
					k.inputs.abandon(inFlight[0].key, inFlight[0].length)
					inFlight = inFlight[1:]
				}
			},
			"take": func(rt *rapid.T) {
				now = now.Add(time.Minute)
				if j, ok := k.inputs.take(now); ok {
					jobs = append(jobs, j)
				}
			},
			"done": func(rt *rapid.T) {
				if len(jobs) > 0 {
					k.inputs.done(jobs[0], now.Add(time.Minute), now)
					jobs = jobs[1:]
				}
			},
			"": func(rt *rapid.T) {
				var bytes int64
				for _, r := range inFlight {
					bytes += r.length
				}
				for _, j := range jobs {
					bytes += j.bytes()
				}
				for k, g := range k.inputs.gathered {
					bytes += job{inputs: g.inputs}.bytes()
					if len(g.inputs)+g.pending > wantedInputs || g.pending < 0 || len(g.inputs)+g.pending == 0 {
						rt.Fatalf("%s has %d inputs and %d to come", k, len(g.inputs), g.pending)
					}
				}
				if bytes != k.inputs.bytes || bytes > maxBytes {
					rt.Fatalf("%d bytes are held, %d counted, want the same and at most %d", bytes, k.inputs.bytes, maxBytes)
				}
				if n := len(k.inputs.gathered); n > maxFunctions {
					rt.Fatalf("inputs of %d functions are kept, want at most %d", n, maxFunctions)
				}
			},
		})
	})
}

func TestNoRoomIsSaid(t *testing.T) {
	fill := func(length int64, perFunction int) (accepted int, refused map[reason]int) {
		k := newKeeper(t)
		refused = map[reason]int{}
		for f := range maxFunctions + 1 {
			rev := newRevision("shop-" + strconv.Itoa(f))
			answer(k.inputs, keyOf(rev), standing{wanted: true})
			for range perFunction {
				if ok, why := k.inputs.reserve(rev, length, k.clock.Now()); ok {
					accepted++
				} else {
					refused[why]++
				}
			}
		}
		return accepted, refused
	}
	if accepted, refused := fill(1, 1); accepted != maxFunctions || refused[reasonTooManyFunctions] != 1 {
		t.Errorf("%d accepted, refused: %v", accepted, refused)
	}
	if accepted, refused := fill(maxBody, wantedInputs); accepted != maxBytes/maxBody || refused[reasonTooManyBytes] == 0 {
		t.Errorf("%d accepted, refused: %v", accepted, refused)
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	k := newKeeper(t)
	now := k.clock.Now()
	for i := range 2 * maxKnown {
		rev := newRevision("shop-" + strconv.Itoa(i))
		if i%2 == 0 {
			k.inputs.refuse(keyOf(rev), now.Add(time.Hour), now)
			continue
		}
		k.inputs.reserve(rev, 1, now)
		if asking := k.inputs.toAsk(); len(asking) == maxAsking {
			for _, asked := range asking {
				k.inputs.answer(asked, standing{wanted: true}, now)
			}
		}
	}
	if n := len(k.inputs.known); n != maxKnown {
		t.Errorf("%d are remembered, want %d", n, maxKnown)
	}
	for i := range 2 * maxAsking {
		k.inputs.reserve(newRevision("new-"+strconv.Itoa(i)), 1, now)
	}
	if n := len(k.inputs.toAsk()); n != maxAsking {
		t.Errorf("%d are to be asked about, want %d", n, maxAsking)
	}
}

func TestDueWhenFullOrAfterAWhile(t *testing.T) {
	k := newKeeper(t)
	rev := newRevision("shop-00001")
	k.do(rev, post("1"))
	if _, due := k.inputs.take(k.clock.Now()); due {
		t.Fatal("one input is due at once")
	}
	k.clock.Step(gatherFor)
	j, due := k.inputs.take(k.clock.Now())
	if !due || len(j.inputs) != 1 {
		t.Fatalf("after %v: %d inputs, due: %v", gatherFor, len(j.inputs), due)
	}
	k.do(rev, post("1"))
	if len(k.inputs.gathered) != 0 {
		t.Error("more is gathered for a function that was taken")
	}

	other := newRevision("other-00001")
	for range 2 * wantedInputs {
		k.do(other, post("1"))
	}
	if j, due := k.inputs.take(k.clock.Now()); !due || len(j.inputs) != wantedInputs {
		t.Errorf("%d inputs, due: %v, want %d at once", len(j.inputs), due, wantedInputs)
	}
}
