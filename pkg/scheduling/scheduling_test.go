package scheduling

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

const asProgram = "SCHEDULING_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		program()
		return
	}
	os.Exit(m.Run())
}

// program prints its ID, before and after, and the slack and slice of some of its threads.
func program() {
	fmt.Println("pid", os.Getpid())
	if err := StartAnew(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("args", os.Args[1:], "mark", os.Getenv(startedAnew))
	var threads sync.WaitGroup
	var printing sync.Mutex
	for range 3 {
		threads.Go(func() {
			runtime.LockOSThread() // and never unlocks, so that each has one of its own
			slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
			attr, attrErr := unix.SchedGetAttr(0, 0)
			printing.Lock()
			defer printing.Unlock()
			fmt.Println("slack", slack, err, "slice", attr.Runtime, attrErr)
		})
	}
	threads.Wait()
}

func TestStartAnew(t *testing.T) {
	cmd := exec.Command(os.Args[0], "--one", "two")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	own, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	wantSlice := slice.Nanoseconds()
	if own.Runtime == 0 {
		wantSlice = 0 // a kernel that knows of none
	}
	pid := fmt.Sprintf("pid %d\n", cmd.Process.Pid)
	want := pid + pid + "args [--one two] mark \n" + strings.Repeat(fmt.Sprintf("slack %d <nil> slice %d <nil>\n", slack.Nanoseconds(), wantSlice), 3)
	if string(out) != want {
		t.Errorf("it printed\n%swant\n%s", out, want)
	}
}
