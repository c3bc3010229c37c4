package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FunctionReportName is the name of a namespace's only FunctionReport.
const FunctionReportName = "functions"

// FunctionReport is what Libra does for the functions of a namespace, or would do for those that are only observed. The
// resizer writes it. Nothing reads settings from it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=libra,shortName=fnr
// +kubebuilder:printcolumn:name="Functions",type=integer,JSONPath=`.status.total.functions`
// +kubebuilder:printcolumn:name="Learned",type=integer,JSONPath=`.status.total.learned`
// +kubebuilder:printcolumn:name="Could Lend",type=string,JSONPath=`.status.total.couldLend.cpu`,description="CPU that requests did not use of their own, in the mean"
// +kubebuilder:printcolumn:name="Would Borrow",type=string,JSONPath=`.status.total.wouldBorrow.cpu`,description="CPU that requests could have used beyond their own, in the mean"
// +kubebuilder:printcolumn:name="Lent",type=string,JSONPath=`.status.total.lent.cpu`
// +kubebuilder:printcolumn:name="Borrowed",type=string,JSONPath=`.status.total.borrowed.cpu`
// +kubebuilder:printcolumn:name="Safeguards",type=integer,JSONPath=`.status.total.safeguards`
// +kubebuilder:printcolumn:name="Slow-down %",type=integer,JSONPath=`.status.total.slowdownPercent`,description="Time of requests over that of similar ones while the functions were only observed"
// +kubebuilder:printcolumn:name="Updated",type=date,JSONPath=`.status.updated`
type FunctionReport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Status FunctionReportStatus `json:"status,omitempty"`
}

// +kubebuilder:object:root=true

type FunctionReportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FunctionReport `json:"items"`
}

// FunctionReportStatus covers the window that ended when it was updated.
type FunctionReportStatus struct {
	// updated is when the report was last written.
	Updated metav1.Time `json:"updated"`

	// window is how long before updated the figures begin.
	Window metav1.Duration `json:"window"`

	// total is the sum over all functions of the namespace, including those that are not listed.
	Total FunctionTotal `json:"total"`

	// functions are the functions that were counted in the window, at most 500: those with the most requests.
	//
	// +optional
	// +listType=map
	// +listMapKey=revision
	// +kubebuilder:validation:MaxItems=500
	Functions []FunctionStatus `json:"functions,omitempty"`
}

// FunctionTotal is the sum over a namespace's functions.
type FunctionTotal struct {
	// functions is how many functions were counted in the window.
	Functions int32 `json:"functions"`
	// learned is how many of these functions have a prediction.
	Learned int32 `json:"learned"`

	FunctionFigures `json:",inline"`
}

// FunctionFigures are figures for the window. Amounts are means, with CPU in cores and memory in bytes.
type FunctionFigures struct {
	// requests is how many requests began in the window.
	Requests int64 `json:"requests"`

	// couldLend is the part of their user allocation that requests were predicted not to use, while they ran. With a
	// containerConcurrency above 1, each counts with what it would leave of its share of the pod.
	//
	// +optional
	CouldLend corev1.ResourceList `json:"couldLend,omitempty"`
	// wouldBorrow is what requests were predicted to use beyond their user allocation, while they ran.
	//
	// +optional
	WouldBorrow corev1.ResourceList `json:"wouldBorrow,omitempty"`
	// lent is what was given away.
	//
	// +optional
	Lent corev1.ResourceList `json:"lent,omitempty"`
	// borrowed is what was received.
	//
	// +optional
	Borrowed corev1.ResourceList `json:"borrowed,omitempty"`

	// safeguards is how often a container got everything back at once.
	Safeguards int64 `json:"safeguards"`

	// slowdownPercent is the typical time of the window's requests as a percentage of the time of the function's requests
	// of similar sizes while it was only observed. Under 100 is faster. It is left out when it is not known.
	//
	// +optional
	SlowdownPercent *int32 `json:"slowdownPercent,omitempty"`
}

// Learning is how far the predictor has come with a function.
//
// +kubebuilder:validation:Enum=Unseen;Learning;Learned
type Learning string

const (
	// LearningUnseen means that nothing was observed, or that no predictor answers.
	LearningUnseen Learning = "Unseen"
	// LearningUnderWay means that there is no prediction yet.
	LearningUnderWay Learning = "Learning"
	LearningDone     Learning = "Learned"
)

// FunctionStatus is the report on one revision.
type FunctionStatus struct {
	// revision is the name of the revision.
	Revision string `json:"revision"`
	// service is the Knative Service of the revision, if it has one.
	//
	// +optional
	Service string `json:"service,omitempty"`

	// mode is the mode in force: observe, lend or full.
	Mode string `json:"mode"`
	// source is the source in force in the namespace: node or owners.
	//
	// +optional
	Source string `json:"source,omitempty"`
	// learning is how far the predictor has come with the function. Unseen: nothing was observed, or no predictor
	// answers. Learning: there is no prediction yet. Learned: there are predictions.
	Learning Learning `json:"learning"`

	// reason is why most of the requests that did not take part did not.
	//
	// +optional
	Reason string `json:"reason,omitempty"`

	FunctionFigures `json:",inline"`
}
