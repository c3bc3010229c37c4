package kubectl

import (
	"encoding/json"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"libra.dev/libra/pkg/api/v1alpha1"
)

func function(service string, mode string, requests int64) v1alpha1.FunctionStatus {
	return v1alpha1.FunctionStatus{
		Revision: service + "-00001", Service: service, Mode: mode, Source: "node", Learning: v1alpha1.LearningDone,
		FunctionFigures: v1alpha1.FunctionFigures{Requests: requests},
	}
}

func (p *plane) reports() {
	for _, namespace := range []string{"shop", "silent", "stale", "idle"} {
		p.namespace(namespace)
	}
	for _, command := range []string{"top", "status"} {
		if out, err := p.run(command, "-n", "idle", "-o", "json"); err != nil || strings.Contains(out, "null") {
			p.Errorf("%s of a namespace without reports: %v, and it prints null where a list is empty:\n%s", command, err, out)
		}
	}
	cart := function("cart", "observe", 120)
	cart.Learning, cart.Reason = v1alpha1.LearningUnderWay, "no_prediction"
	cart.CouldLend, cart.WouldBorrow = list("350m", "120Mi"), list("250m", "0")
	thumb := function("thumb", "full", 40)
	thumb.CouldLend, thumb.WouldBorrow, thumb.Borrowed, thumb.Lent = list("100m", "300Mi"), list("900m", "0"), list("700m", "64Mi"), list("50m", "0")
	thumb.Safeguards, thumb.SlowdownPercent = 2, ptr.To[int32](71)
	late := function("late", "lend", 3)
	p.report("shop", 3*time.Second, cart, thumb, late)
	p.report("stale", 10*time.Minute, function("old", "full", 1))
	p.report("idle", 80*time.Second, function("idle", "full", 0))
	p.revision("silent", "mute-00001", list("500m", "256Mi"))

	p.golden("status", "status", "-n", "shop")
	p.golden("status-wide", "status", "thumb", "-n", "shop", "-o", "wide")
	p.golden("savings", "savings", "-n", "shop")
	p.golden("top", "top", "-n", "shop")
	p.prints("Namespace silent: it has functions that opted in, but no FunctionReport; look at `kubectl -n libra-system", "status", "-A")
	p.prints("Namespace stale: its FunctionReport is 10m old", "savings", "-A")
	if out, err := p.run("status", "-n", "idle"); err != nil || strings.Contains(out, "old") {
		p.Errorf("of a report that is due for the next round, status says %v and\n%s", err, out)
	}
	p.prints("No function in namespace default has opted in", "top", "-n", "default")
	p.refuses(`no function "nothing" is reported`, "status", "nothing", "-n", "shop")
	p.refuses(`--output is "csv", want one of table`, "status", "-o", "csv")
	p.refuses("--interval is 1s, want 2s or more", "top", "--watch", "--interval", "1s")

	out, err := p.run("savings", "-n", "shop", "-o", "json")
	p.do(err)
	var found struct {
		Kind, APIVersion string
		Functions        []saving
		Total            saving
	}
	p.do(json.Unmarshal([]byte(out), &found))
	if found.Kind != "Savings" || found.APIVersion != documentVersion || len(found.Functions) != 3 || found.Total.UnusedMilliCores != 450 || found.Total.WantedMilliCores != 1150 {
		p.Errorf("as JSON it is %+v", found)
	}
	out, err = p.run("status", "-n", "shop", "-o", "yaml")
	p.do(err)
	for _, want := range []string{"kind: Status", "slowdownPercent: 71", "revision: cart-00001"} {
		if !strings.Contains(out, want) {
			p.Errorf("as YAML there is no %q in\n%s", want, out)
		}
	}
	// It ends by itself.
	out, err = p.run("top", "-n", "shop", "--watch", "--interval", "2s", "--for", "5s")
	p.do(err)
	if got := strings.Count(out, "thumb"); got < 1 {
		p.Errorf("in five seconds it printed %d times:\n%s", got, out)
	}
}

func (p *plane) completion() {
	p.namespace("typed")
	p.service("typed", "cart", nil)
	out, err := p.run("__complete", "status", "-n", "typed", "")
	if err != nil || !strings.HasPrefix(out, "cart\n") {
		p.Errorf("Services are completed as %q (%v), want cart", out, err)
	}
	out, err = p.run("__complete", "status", "-n", "")
	if err != nil || !strings.Contains(out, "typed\n") {
		p.Errorf("namespaces are completed as %q (%v), want typed among them", out, err)
	}
}
