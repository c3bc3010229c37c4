package kubectl

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/activator-plugin/invocation"
	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
)

// askTimeout is how long the predictor may take to answer once it is reached.
const askTimeout = 5 * time.Second

// explanation is what `explain` found out.
type explanation struct {
	invocation.Explanation
	Namespace, Service, Revision string
	Mode                         api.Mode
	ModeBy                       string
	Source                       api.Source
	SourceBy                     string
	Domain, DomainBy             string // empty is the namespace's own
	Nodes                        []nodeCeiling
	Size                         *int64 // nil when it is not known
	Prediction                   *predict.Prediction
	Stage, StageReason           string // of the predictor's learning
	PredictorError               string
}

// nodeCeiling is the most CPU that a pod may use on its node.
type nodeCeiling struct {
	Node              string     `json:"node"`
	Source            api.Source `json:"source"`
	CeilingMilliCores int64      `json:"ceilingMilliCores"`
}

// explainDocument is what `explain` prints as JSON and YAML.
type explainDocument struct {
	Namespace  string              `json:"namespace"`
	Service    string              `json:"service"`
	Revision   string              `json:"revision"`
	Allocation api.Resources       `json:"allocation"`
	Mode       api.Mode            `json:"mode"`
	Source     api.Source          `json:"source"`
	Domain     string              `json:"domain,omitempty"`
	Nodes      []nodeCeiling       `json:"nodes,omitempty"`
	InPath     bool                `json:"inPath"`
	Size       *int64              `json:"sizeBytes,omitempty"`
	Prediction *predictionDocument `json:"prediction,omitempty"`
	Stage      string              `json:"stage,omitempty"`
	// CouldLend and WouldBorrow do not depend on the mode.
	CouldLend   api.Resources `json:"couldLend"`
	WouldBorrow api.Resources `json:"wouldBorrow"`
	Role        string        `json:"role"`
	Reason      string        `json:"reason,omitempty"`
	Problems    []string      `json:"problems,omitempty"`
}

type predictionDocument struct {
	api.Resources `json:",inline"`
	Duration      string `json:"duration"`
	CPUTime       string `json:"cpuTime"`
	Beyond        bool   `json:"beyondLearned"`
}

// predict asks a predictor of the cluster. For a function not known yet, it returns no prediction and no error.
func (e *explanation) predict(ctx context.Context, kube client.Client, to forward, revision *servingv1.Revision, size int64) (*predict.Prediction, error) {
	base, stop, err := predictorAt(ctx, kube, to)
	if err != nil {
		return nil, err
	}
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	function := api.FunctionOf(types.NamespacedName{Namespace: revision.Namespace, Name: revision.Name}, revision.Labels)
	table, err := predict.Ask(ctx, http.DefaultClient, base, function, size)
	if errors.Is(err, predict.ErrNotFound) {
		e.Stage = "unseen"
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	e.Stage, e.StageReason = table.Stage, table.Reason
	p := table.Lookup(size)
	if p.Demand.IsZero() {
		return nil, nil
	}
	return &p, nil
}

// becauseOf has a sentence for each reason of a role.
var becauseOf = map[string]string{
	"mode":                "the mode allows no more",
	"no_prediction":       "there is no prediction for it, so it lends nothing",
	"concurrency":         "its containerConcurrency is 0, so its pod may have any number of requests",
	"copy":                "its revision is a copy, to which the duplicator sends requests",
	"cluster_ip":          "the activator reaches the function's pods only through a ClusterIP, and does not know which pod had the request",
	"pod_unknown":         "the activator did not know its pod",
	"too_many_in_flight":  "too many requests were in flight to report each of them",
	"not_in_path":         "requests can go past the activator to the function's pods, so the function lends nothing",
	"queue_proxy_limits":  "queue-proxy has limits, so the pod's own quota would bind",
	"no_limits":           "its container has no limits, so it is owed nothing",
	"connection_upgraded": "it asked to upgrade its connection, which can then carry more than one request",
	"cold_start":          "it arrived before its container had started",
	"first_in_container":  "its container had served no request yet, and may still have been starting up",
}

const underNode = "under the source node, CPU is not lent: weights and the ceiling decide how much the pod gets"

func (e *explanation) document() document {
	table := newTable("what", "is", "because")
	addRow(table, "function", e.Namespace+"/"+e.Service, "its latest ready revision is "+e.Revision)
	addRow(table, "user allocation", e.Allocation.String(), "the limits in the Revision")
	addRow(table, "mode", string(e.Mode), e.ModeBy)
	addRow(table, "source", string(e.Source), e.SourceBy)
	if e.Domain != "" {
		addRow(table, "domain", e.Domain, e.DomainBy)
	}
	path, because := "always in the path", "target-burst-capacity is -1"
	switch {
	case e.Bypass != nil:
		path, because = "can be bypassed", e.Bypass.Error()
	case e.Bypassed:
		path, because = "in the path now", "config-autoscaler was changed recently, so requests that went past the activator may still run"
	}
	addRow(table, "activator", path, because)
	size := "not known"
	if e.Size != nil {
		size = fmt.Sprintf("%d bytes", *e.Size)
	}
	addRow(table, "input size", size, "")
	e.addPrediction(table)
	for _, n := range e.Nodes {
		if n.Source == api.SourceNode && e.Mode == api.ModeFull {
			addRow(table, "ceiling on "+n.Node, fmt.Sprintf("%dm", n.CeilingMilliCores), "what the node can give, up to "+api.MaxCPUAnnotation+" or else maxCPU in a HarvestPolicy")
		} else if n.Source == api.SourceNode {
			addRow(table, "ceiling on "+n.Node, fmt.Sprintf("%dm", e.Allocation.CPUMilli), fmt.Sprintf("in the mode full it would be %dm", n.CeilingMilliCores))
		}
	}
	ranked := ""
	switch {
	case e.Quick:
		ranked = "it is predicted to end so soon that few requests like it are reported to the pool"
	case e.Source == api.SourceNode && e.Mode != api.ModeObserve:
		ranked = underNode
	}
	addRow(table, "role", e.Role, strings.Join(nonEmpty(becauseOf[e.Reason], ranked), "; "))
	return document{kind: "Explanation", data: e.forPrograms(), tables: []*metav1.Table{table}, notes: e.problems()}
}

func (e *explanation) addPrediction(table *metav1.Table) {
	stage := strings.Join(nonEmpty("the predictor is at the stage "+e.Stage, e.StageReason), ": ")
	if e.PredictorError != "" {
		addRow(table, "prediction", "not known", e.PredictorError)
		return
	}
	if e.Prediction == nil {
		addRow(table, "prediction", "none yet", stage)
		return
	}
	addPrediction(table, e.Prediction, e.Surplus, e.Want, stage, whyNeither(e.Reason))
}

// whyNeither returns why a request could neither lend nor borrow, whatever its prediction and its mode, or "".
func whyNeither(reason string) string {
	switch reason {
	case "mode", "too_many_in_flight":
		return ""
	}
	return becauseOf[reason]
}

// addPrediction adds what was predicted, why, and what follows from it. neither says why nothing does, and is empty where the
// prediction decides.
func addPrediction(table *metav1.Table, p *predict.Prediction, couldLend, wouldBorrow api.Resources, because, neither string) {
	if p.Beyond {
		because = "the input is larger than any that the predictor has learned from"
	}
	addRow(table, "predicted CPU", fmt.Sprintf("%dm", p.Demand.CPUMilli), because)
	addRow(table, "predicted memory", fmt.Sprintf("%dMi", p.Demand.MemoryBytes>>20), "")
	addRow(table, "predicted time", fmt.Sprintf("%v or more, %v of CPU", p.Duration, p.CPUTime.Round(time.Millisecond)), "")
	of := func(surplus, want int64, in string) (string, string) {
		switch {
		case want > 0:
			return "borrower", fmt.Sprintf("it could use %d%s beyond its allocation", want, in)
		case surplus > 0:
			return "donor", fmt.Sprintf("it could spare %d%s", surplus, in)
		case neither != "":
			return "neither", neither
		case p.Beyond:
			return "neither", "an input of this size may need more than is predicted, so nothing is lent"
		}
		return "neither", "its need is about its allocation, a loan would be too short to pay, or it has no limit"
	}
	is, why := of(couldLend.CPUMilli, wouldBorrow.CPUMilli, "m")
	addRow(table, "CPU", is, why)
	is, why = of(couldLend.MemoryBytes>>20, wouldBorrow.MemoryBytes>>20, "Mi")
	addRow(table, "memory", is, why)
}

func nonEmpty(all ...string) (some []string) {
	for _, s := range all {
		if s != "" {
			some = append(some, s)
		}
	}
	return some
}

func (e *explanation) problems() (problems []string) {
	for _, err := range e.Refused {
		problems = append(problems, fmt.Sprintf("Refused: %v", err))
	}
	return problems
}

func (e *explanation) forPrograms() *explainDocument {
	d := &explainDocument{
		Namespace: e.Namespace, Service: e.Service, Revision: e.Revision, Allocation: e.Allocation, Mode: e.Mode, Source: e.Source, Domain: e.Domain,
		Nodes: e.Nodes, InPath: !e.Bypassed, Size: e.Size, Stage: e.Stage, CouldLend: e.Surplus, WouldBorrow: e.Want,
		Role: e.Role, Reason: e.Reason, Problems: nonEmpty(append(e.problems(), e.PredictorError)...),
	}
	if p := e.Prediction; p != nil {
		d.Prediction = documentOf(p)
	}
	return d
}

func documentOf(p *predict.Prediction) *predictionDocument {
	return &predictionDocument{p.Demand, p.Duration.String(), p.CPUTime.String(), p.Beyond}
}
