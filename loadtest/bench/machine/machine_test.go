package machine

import "testing"

func TestParseMemory(t *testing.T) {
	got, err := parseMemory("Name:\tcontroller\nVmHWM:\t  204800 kB\nVmRSS:\t  102400 kB\nRssAnon:\t  51200 kB\nThreads:\t9\n")
	if want := (Memory{Now: 100 << 20, Anonymous: 50 << 20, Peak: 200 << 20}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, status := range []string{"", "VmRSS:\t1 kB\n", "VmHWM:\tmany kB\nVmRSS:\t1 kB\n"} {
		if m, err := parseMemory(status); err == nil {
			t.Errorf("%q is %+v", status, m)
		}
	}
}
