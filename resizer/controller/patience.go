package controller

import (
	"context"
	"slices"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/pool"
)

const (
	// waitPatience bounds how long a donor's spec is kept below what it is owed because
	// its borrowers are not known to be shrunk. It is time for an agent's silence to be
	// noticed, and for its pods to be nudged.
	waitPatience = pool.LeaseTTL + nudgeAfter + nudgePatience + time.Second

	// outagePatience bounds how much longer a pod waits for others to be lowered when the
	// API server did not answer: an outage of ten seconds, by when a process that cannot
	// renew its lease has ended, and what comes after it.
	outagePatience = 10*time.Second + unansweredPatience

	// unansweredPatience is how long after a patch that the API server did not answer it is
	// tried again and done by the kubelet.
	unansweredPatience = backOffMax + patchTimeout + nudgePatience
)

// lowering notes that the kubelet is to be told to lower what is in force, and will have
// done so after d.
func (n *node) lowering(now time.Time, d time.Duration) {
	if by := now.Add(d); by.After(n.loweredBy) {
		n.loweredBy = by
	}
}

// patient says whether a pod that has waited since then, for others to be lowered, has
// to wait on: for patience, and longer while the kubelet could not be told to lower them.
func (n *node) patient(since time.Time, patience time.Duration, now time.Time) bool {
	waited := now.Sub(since)
	return waited < patience || now.Before(n.loweredBy) && waited < patience+outagePatience
}

// wait notes which pods wait for their own CPU, and ends their patience.
func (n *node) wait(ctx context.Context, waiting []string, now time.Time) {
	for name, m := range n.pods {
		switch {
		case !slices.Contains(waiting, name):
			m.waitsSince, m.impatient = time.Time{}, false
		case m.waitsSince.IsZero():
			m.waitsSince = now
		case !m.impatient && !n.patient(m.waitsSince, waitPatience, now):
			m.impatient = true
			logf.FromContext(ctx).Info("a pod gets its own CPU though others may still have it: neither the agent nor the kubelet has said that they have not",
				"node", n.name, "pod", name, "function", m.function, "waited", now.Sub(m.waitsSince))
		}
	}
}
