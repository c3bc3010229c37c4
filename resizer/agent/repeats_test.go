package agent

import (
	"testing"
	"time"
)

func TestTheLogRepeatsItselfSeldom(t *testing.T) {
	r := repeats{}
	now := time.Unix(0, 0)
	lines, told := 0, 0
	const every, total = 10 * time.Millisecond, time.Minute
	for range total / every {
		if times, ok := r.tell("default/a", "a limit was changed", now); ok {
			lines, told = lines+1, told+times
		}
		r.forget(now)
		now = now.Add(every)
	}
	if want := int(total / logEvery); lines != want {
		t.Errorf("%d lines in %v, want %d", lines, total, want)
	}
	if most, want := int(total/every), int((total-logEvery)/every); told > most || told < want {
		t.Errorf("they tell of %d times, want %d to %d", told, want, most)
	}
	for _, other := range []repeat{{"default/b", "a limit was changed"}, {"default/a", "a donor was restored"}} {
		if times, ok := r.tell(other.pod, other.what, now); !ok || times != 1 {
			t.Errorf("%v is told with %d times: %v, want 1 at once", other, times, ok)
		}
	}
	if r.forget(now.Add(2 * logEvery)); len(r) != 0 {
		t.Errorf("%d are remembered", len(r))
	}
}
