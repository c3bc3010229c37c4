package timerslack

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const asProgram = "TIMERSLACK_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		program()
		return
	}
	os.Exit(m.Run())
}

// program prints its process ID, before and after, and the slack of some of its threads.
func program() {
	fmt.Println("pid", os.Getpid())
	if err := Widen(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("args", os.Args[1:], "mark", os.Getenv(widened))
	var threads sync.WaitGroup
	var printing sync.Mutex
	for range 3 {
		threads.Go(func() {
			runtime.LockOSThread() // never unlocked, so that each has a thread of its own
			got, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
			printing.Lock()
			defer printing.Unlock()
			fmt.Println("slack", got, err)
		})
	}
	threads.Wait()
}

func TestWiden(t *testing.T) {
	cmd := exec.Command(os.Args[0], "--one", "two")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pid := fmt.Sprintf("pid %d\n", cmd.Process.Pid)
	want := pid + pid + "args [--one two] mark \n" + strings.Repeat(fmt.Sprintf("slack %d <nil>\n", slack.Nanoseconds()), 3)
	if string(out) != want {
		t.Errorf("it printed\n%swant\n%s", out, want)
	}
}
