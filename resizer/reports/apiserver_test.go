package reports_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/apiservertest"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
	"libra.dev/libra/pkg/report"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/reports"
)

const account = "system:serviceaccount:libra-system:libra-resizer"

// live has mode observe unless something says otherwise.
type live struct{}

func (live) For(string) settings.Settings { return settings.Default }

func (live) Source(string, string) api.Source { return api.SourceOwners }

// cluster is a Redis and an API server, on which a Writer has the rights that the resizer has.
type cluster struct {
	*testing.T
	clock  *testingclock.FakeClock
	redis  *pool.Redis
	kube   client.Client
	cached client.Client
	writer *reports.Writer
}

func start(t *testing.T, revisions ...client.Object) *cluster {
	t.Helper()
	config := apiservertest.Start(t, "../../manifests/base/crds")
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, servingv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	clientAs := func(user string) client.Client {
		as := rest.CopyConfig(config)
		as.QPS, as.Impersonate.UserName = -1, user
		c, err := client.New(as, client.Options{Scheme: scheme})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := &cluster{
		T: t, clock: testingclock.NewFakeClock(time.Now().Truncate(report.SlotTime)), kube: clientAs(""),
		cached: fake.NewClientBuilder().WithScheme(scheme).WithObjects(revisions...).Build(),
	}
	c.redis = pool.NewRedis(redisconn.MustParse(redistest.Start(t)))
	t.Cleanup(func() { c.redis.Close() })
	for _, name := range []string{"shop", "bank"} {
		c.do(c.kube.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	var role rbacv1.ClusterRole
	text, err := os.ReadFile("../../manifests/base/resizer/clusterrole.yaml")
	c.do(err)
	c.do(yaml.UnmarshalStrict(text, &role))
	c.do(c.kube.Create(t.Context(), &role))
	c.do(c.kube.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "resizer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: account}},
	}))
	apiservertest.AwaitRight(t, config, account, authorizationv1.ResourceAttributes{Group: v1alpha1.GroupVersion.Group, Resource: "functionreports", Verb: "list"})
	c.writer = c.newWriter(clientAs(account))
	return c
}

func (c *cluster) newWriter(kube client.Client) *reports.Writer {
	return reports.NewWriter(c.clock, logr.Discard(), c.redis, c.cached, kube, kube, live{})
}

func (c *cluster) do(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// revision makes a revision of the function with its name.
func revision(namespace, name string, annotations map[string]string) *servingv1.Revision {
	return &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Annotations: annotations,
		Labels: map[string]string{api.EnabledLabel: api.EnabledValue, serving.ServiceLabelKey: "of-" + name},
	}}
}

// count makes a part count one function in this minute, instead of what it counted before.
func (c *cluster) count(part, namespace, name string, s report.Sums) {
	c.Helper()
	encoded, err := report.Encode(report.Record{types.NamespacedName{Namespace: namespace, Name: name}: &s})
	c.do(err)
	c.do(c.redis.PutReports(c.Context(), part+" "+name, map[report.Slot][]byte{report.SlotOf(c.clock.Now()): encoded}))
}

// report returns the report of a namespace, nil where there is none.
func (c *cluster) report(namespace string) *v1alpha1.FunctionReport {
	c.Helper()
	var r v1alpha1.FunctionReport
	err := c.kube.Get(c.Context(), client.ObjectKey{Namespace: namespace, Name: v1alpha1.FunctionReportName}, &r)
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.do(err)
	return &r
}

func quantities(cpu, memory string) corev1.ResourceList {
	list := corev1.ResourceList{}
	if cpu != "" {
		list[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		list[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return list
}

func TestReportsSayWhatAllPartsCounted(t *testing.T) {
	c := start(t, revision("shop", "resize-1", nil), revision("shop", "blur-1", map[string]string{api.ModeAnnotation: "full"}),
		revision("bank", "audit-1", nil))
	// The window has lasted nine minutes, to the second.
	window := (report.Slots - 1) * report.SlotTime
	minute := time.Minute
	c.count("activator-1", "shop", "resize-1", report.Sums{
		report.Requests: 10, report.Mode: 8, report.FirstInContainer: 2, report.FoundLearned: 1,
		report.CouldLendCPU: report.CPUTime(900, 9*minute), report.CouldLendMemory: report.MemoryTime(256<<20, 9*minute),
	})
	c.count("activator-2", "shop", "resize-1", report.Sums{
		report.Requests: 5, report.Mode: 5, report.FoundUnseen: 1, report.WouldBorrowCPU: report.CPUTime(450, 2*minute),
	})
	c.count("activator-1", "shop", "blur-1", report.Sums{
		report.Requests: 20, report.FoundLearning: 3, report.NoPrediction: 20,
		report.Compared: 20, report.LogTime: 20 * 29 * report.LogUnit, report.LogTimeBefore: 20 * 30 * report.LogUnit,
	})
	c.count("agent-1", "shop", "blur-1", report.Sums{report.LentCPU: report.CPUTime(1800, minute), report.Safeguards: 2})
	c.count("agent-2", "shop", "blur-1", report.Sums{report.BorrowedCPU: report.CPUTime(900, minute), report.BorrowedMemory: report.MemoryTime(90<<20, minute)})
	c.count("activator-1", "shop", "made-up", report.Sums{report.Requests: 1000})
	c.count("activator-1", "default", "made-up", report.Sums{report.Requests: 1000})
	c.do(c.writer.Round(c.Context()))

	got := c.report("shop")
	if got == nil {
		t.Fatal("There is no report of shop.")
	}
	resizing := v1alpha1.FunctionFigures{Requests: 15, CouldLend: quantities("900m", "256Mi"), WouldBorrow: quantities("100m", "")}
	blurring := v1alpha1.FunctionFigures{Requests: 20, Lent: quantities("200m", ""), Borrowed: quantities("100m", "10Mi"), Safeguards: 2, SlowdownPercent: ptr.To[int32](50)}
	want := v1alpha1.FunctionReportStatus{
		Updated: metav1.NewTime(c.clock.Now()), Window: metav1.Duration{Duration: window},
		Total: v1alpha1.FunctionTotal{Functions: 2, Learned: 1, FunctionFigures: v1alpha1.FunctionFigures{
			Requests: 35, CouldLend: resizing.CouldLend, WouldBorrow: resizing.WouldBorrow, Lent: blurring.Lent, Borrowed: blurring.Borrowed, Safeguards: 2,
			SlowdownPercent: ptr.To[int32](50),
		}},
		Functions: []v1alpha1.FunctionStatus{
			{Revision: "blur-1", Service: "of-blur-1", Mode: "full", Source: "owners", Learning: v1alpha1.LearningUnderWay, Reason: "no_prediction", FunctionFigures: blurring},
			{Revision: "resize-1", Service: "of-resize-1", Mode: "observe", Source: "owners", Learning: v1alpha1.LearningDone, Reason: "mode", FunctionFigures: resizing},
		},
	}
	if diff := cmp.Diff(want, got.Status, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b metav1.Time) bool { return a.Equal(&b) })); diff != "" {
		t.Errorf("The report of shop (-want +got):\n%s", diff)
	}
	if bank := c.report("bank"); bank == nil || bank.Status.Total.Functions != 0 || bank.Status.Updated.IsZero() {
		t.Errorf("The report of bank, which has had no requests, is %v", bank)
	}
	if other := c.report("default"); other != nil {
		t.Errorf("A namespace without opted-in functions has the report %v", other)
	}
}

// The many requests of a function's start do not hide why current requests do not take part.
func TestTheReasonIsThatOfTheLatestRequests(t *testing.T) {
	c := start(t, revision("shop", "resize-1", nil))
	reason := func() string {
		t.Helper()
		c.do(c.writer.Round(t.Context()))
		return c.report("shop").Status.Functions[0].Reason
	}
	c.count("activator-1", "shop", "resize-1", report.Sums{report.Requests: 100, report.NoPrediction: 100})
	if got := reason(); got != "no_prediction" {
		t.Errorf("At first it is %q, want no_prediction", got)
	}
	c.clock.Step(2 * report.SlotTime)
	c.count("activator-1", "shop", "resize-1", report.Sums{report.Requests: 5, report.Mode: 5})
	if got := reason(); got != "mode" {
		t.Errorf("Two minutes later it is %q, want mode", got)
	}
	c.clock.Step(2 * report.SlotTime)
	if got := reason(); got != "no_prediction" {
		t.Errorf("Without a request of late it is %q, want that of the whole window, no_prediction", got)
	}
}

func TestReportsAreWrittenWhenSomethingChangedAndOnceAMinute(t *testing.T) {
	c := start(t, revision("shop", "resize-1", nil))
	round := func(after time.Duration) string {
		t.Helper()
		c.clock.Step(after)
		c.do(c.writer.Round(t.Context()))
		return c.report("shop").ResourceVersion
	}
	c.count("activator-1", "shop", "resize-1", report.Sums{report.Requests: 1})
	first := round(0)
	if again := round(10 * time.Second); again != first {
		t.Error("It is written when nothing changed but the time.")
	}
	c.count("activator-1", "shop", "resize-1", report.Sums{report.Requests: 2})
	second := round(10 * time.Second)
	if second == first {
		t.Error("It is not written when something changed.")
	}
	third := round(time.Minute)
	if third == second {
		t.Error("It is not written after a minute.")
	}

	// While Redis is away, the report stays as it is.
	c.do(c.redis.Close())
	c.clock.Step(5 * time.Minute)
	if err := c.writer.Round(t.Context()); err == nil {
		t.Error("Without Redis it does not say that it fails.")
	}
	if left := c.report("shop").ResourceVersion; left != third {
		t.Error("It is written without Redis.")
	}
}

func TestAReportThatAnotherChangedOrRemovedIsWrittenAgain(t *testing.T) {
	c := start(t, revision("shop", "resize-1", nil))
	c.do(c.writer.Round(t.Context()))
	written := c.report("shop")
	written.Labels = map[string]string{"team": "a"}
	c.do(c.kube.Update(t.Context(), written))
	for i, change := range []func(){
		func() {},
		func() { c.do(c.kube.Delete(t.Context(), c.report("shop"))) },
	} {
		change()
		c.count("activator-1", "shop", "resize-1", report.Sums{report.Requests: int64(i + 1)})
		c.clock.Step(20 * time.Second)
		c.do(c.writer.Round(t.Context()))
		if got := c.report("shop"); got == nil || got.Status.Total.Requests != int64(i+1) {
			t.Fatalf("Change %d: the report is %v", i, got)
		}
		if i == 0 && c.report("shop").Labels["team"] != "a" {
			t.Error("A user's label of it is lost.")
		}
	}
}

func TestTheReportOfANamespaceWithoutFunctionsIsRemovedAfterAnHour(t *testing.T) {
	opted := revision("shop", "resize-1", nil)
	c := start(t, opted, revision("bank", "audit-1", nil))
	c.do(c.writer.Round(t.Context()))
	c.do(c.cached.Delete(t.Context(), opted))
	for range 59 {
		c.clock.Step(time.Minute)
		c.do(c.writer.Round(t.Context()))
	}
	if c.report("shop") == nil {
		t.Fatal("The report is removed before an hour is over.")
	}
	c.clock.Step(2 * time.Minute)
	c.do(c.writer.Round(t.Context()))
	if c.report("shop") != nil || c.report("bank") == nil {
		t.Errorf("After an hour there are reports %v and %v, want the second alone", c.report("shop"), c.report("bank"))
	}
}

func TestAnotherLeaderGoesOn(t *testing.T) {
	c := start(t, revision("shop", "resize-1", nil))
	c.count("activator-1", "shop", "resize-1", report.Sums{report.Requests: 3})
	c.do(c.writer.Round(t.Context()))
	c.clock.Step(time.Minute)
	c.count("activator-1", "shop", "resize-1", report.Sums{report.Requests: 4})
	next := c.newWriter(c.kube)
	c.do(next.Round(t.Context()))
	if got := c.report("shop").Status.Total.Requests; got != 7 {
		t.Errorf("The next leader counts %d requests, want 7", got)
	}
}

func TestAReportOfMoreFunctionsThanItListsIsTaken(t *testing.T) {
	var revisions []client.Object
	record := report.Record{}
	for i := range 600 {
		name := fmt.Sprintf("function-%03d", i)
		revisions = append(revisions, revision("shop", name, nil))
		record.Add(types.NamespacedName{Namespace: "shop", Name: name}, &report.Sums{report.Requests: int64(i + 1)})
	}
	c := start(t, revisions...)
	encoded, err := report.Encode(record)
	c.do(err)
	c.do(c.redis.PutReports(context.WithoutCancel(t.Context()), "activator-1", map[report.Slot][]byte{report.SlotOf(c.clock.Now()): encoded}))
	c.do(c.writer.Round(t.Context()))
	status := c.report("shop").Status
	if len(status.Functions) != 500 || status.Functions[0].Revision != "function-599" || status.Total.Functions != 600 || status.Total.Requests != 600*601/2 {
		t.Errorf("It lists %d functions of %d with %d requests, want the 500 with the most of 600 with %d",
			len(status.Functions), status.Total.Functions, status.Total.Requests, 600*601/2)
	}
}
