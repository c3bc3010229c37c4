package reports

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/report"
	"libra.dev/libra/pkg/settings"
)

// mostFunctions is how many functions a report lists at most, as its schema says.
const mostFunctions = 500

// latestSlots is how many slots tell the reason: the one that has not ended, and the one before.
const latestSlots = 2

// Live has the settings in force.
type Live interface {
	// For returns the settings of a namespace's functions.
	For(namespace string) settings.Settings
	Source(namespace, node string) api.Source
}

// counted is one function of a namespace, and what was counted for it.
type counted struct {
	revision *servingv1.Revision
	sums     report.Sums
	// latest is what was counted for it in the last minute or two.
	latest report.Sums
}

// statusOf returns the status of a namespace's report at now, over a window that ended then.
func statusOf(functions []counted, live Live, now time.Time, window time.Duration) v1alpha1.FunctionReportStatus {
	status := v1alpha1.FunctionReportStatus{Updated: metav1.NewTime(now), Window: metav1.Duration{Duration: window}}
	var total report.Sums
	slices.SortFunc(functions, func(a, b counted) int {
		return cmp.Or(cmp.Compare(b.sums[report.Requests], a.sums[report.Requests]), cmp.Compare(a.revision.Name, b.revision.Name))
	})
	for i := range functions {
		f := &functions[i]
		total.Add(&f.sums)
		learning := learningOf(&f.sums)
		status.Total.Functions++
		if learning == v1alpha1.LearningDone {
			status.Total.Learned++
		}
		if i >= mostFunctions {
			continue
		}
		status.Functions = append(status.Functions, v1alpha1.FunctionStatus{
			Revision:        f.revision.Name,
			Service:         f.revision.Labels[serving.ServiceLabelKey],
			Mode:            string(live.For(f.revision.Namespace).ModeOf(f.revision.Annotations)),
			Source:          string(live.Source(f.revision.Namespace, "")),
			Learning:        learning,
			Reason:          f.reason(),
			FunctionFigures: figuresOf(&f.sums, window),
		})
	}
	status.Total.FunctionFigures = figuresOf(&total, window)
	return status
}

func figuresOf(s *report.Sums, window time.Duration) v1alpha1.FunctionFigures {
	of := func(cpu, memory int64) corev1.ResourceList {
		list := corev1.ResourceList{}
		if milli := report.MeanCPUMilli(cpu, window); milli > 0 {
			list[corev1.ResourceCPU] = *resource.NewMilliQuantity(milli, resource.DecimalSI)
		}
		if bytes := report.MeanMemoryBytes(memory, window); bytes > 0 {
			list[corev1.ResourceMemory] = *resource.NewQuantity(bytes, resource.BinarySI)
		}
		return list
	}
	return v1alpha1.FunctionFigures{
		Requests:    s[report.Requests],
		CouldLend:   of(s[report.CouldLendCPU], s[report.CouldLendMemory]),
		WouldBorrow: of(s[report.WouldBorrowCPU], s[report.WouldBorrowMemory]),
		Lent:        of(s[report.LentCPU], 0),
		Borrowed:    of(s[report.BorrowedCPU], s[report.BorrowedMemory]),
		Safeguards:  s[report.Safeguards],

		SlowdownPercent: s.SlowdownPercent(),
	}
}

// learningOf returns the furthest state that any activator found within the window: one that has just started
// knows nothing about a function before its first answer.
func learningOf(s *report.Sums) v1alpha1.Learning {
	switch {
	case s[report.FoundLearned] > 0:
		return v1alpha1.LearningDone
	case s[report.FoundLearning] > 0:
		return v1alpha1.LearningUnderWay
	default:
		return v1alpha1.LearningUnseen
	}
}

// reason returns the reason of the latest requests: in the whole window, the requests of a function's start
// would hide what is true now.
func (f *counted) reason() string {
	if f.latest[report.Requests] > 0 {
		return reasonOf(&f.latest)
	}
	return reasonOf(&f.sums)
}

// reasonOf returns the reason of the most requests that did not take part. A tie goes to the first in the
// order of the fields.
func reasonOf(s *report.Sums) string {
	var most report.Field
	for f := report.ClusterIP; f <= report.Mode; f++ {
		if s[f] > 0 && (most == 0 || s[f] > s[most]) {
			most = f
		}
	}
	return report.Reasons[most]
}
