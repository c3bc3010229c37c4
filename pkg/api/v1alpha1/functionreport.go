package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FunctionReportName is the name of a namespace's only FunctionReport.
const FunctionReportName = "functions"

// FunctionReport is what Libra does for the functions of a namespace, or in the mode observe would do. The
// resizer writes it; nothing reads settings from it.
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

// FunctionReportStatus is of the window that ended when it was updated.
type FunctionReportStatus struct {
	// Updated is when this was written last.
	Updated metav1.Time `json:"updated"`

	// Window is how long before that the figures begin.
	Window metav1.Duration `json:"window"`

	// Total is of all functions of the namespace, also of those that are not listed.
	Total FunctionTotal `json:"total"`

	// Functions are those that had requests in the window, at most 500 of them: those with the most requests.
	//
	// +optional
	// +listType=map
	// +listMapKey=revision
	// +kubebuilder:validation:MaxItems=500
	Functions []FunctionStatus `json:"functions,omitempty"`
}

// FunctionTotal is the sum over a namespace's functions.
type FunctionTotal struct {
	// Functions had a request in the window, and Learned of them have a prediction.
	Functions int32 `json:"functions"`
	Learned   int32 `json:"learned"`

	FunctionFigures `json:",inline"`
}

// FunctionFigures are CPU in cores and memory in bytes, in the mean over the window.
type FunctionFigures struct {
	// Requests that began in the window.
	Requests int64 `json:"requests"`

	// CouldLend is what requests were predicted not to use of their user allocation, while they ran.
	//
	// +optional
	CouldLend corev1.ResourceList `json:"couldLend,omitempty"`
	// WouldBorrow is what requests were predicted to use beyond their user allocation, while they ran.
	//
	// +optional
	WouldBorrow corev1.ResourceList `json:"wouldBorrow,omitempty"`
	// Lent is what was given away, and Borrowed what was received.
	//
	// +optional
	Lent corev1.ResourceList `json:"lent,omitempty"`
	// +optional
	Borrowed corev1.ResourceList `json:"borrowed,omitempty"`

	// Safeguards is how often a container got everything back at once.
	Safeguards int64 `json:"safeguards"`

	// SlowdownPercent is the typical time of the window's requests over that of the function's requests while it was only
	// observed, of similar sizes, in percent. Under 100 is faster. It is left out when that is not known.
	//
	// +optional
	SlowdownPercent *int32 `json:"slowdownPercent,omitempty"`
}

// Learning is how far the predictor is with a function.
//
// +kubebuilder:validation:Enum=Unseen;Learning;Learned
type Learning string

const (
	// LearningUnseen has nothing observed, or no predictor that answers.
	LearningUnseen Learning = "Unseen"
	// LearningUnderWay has no prediction yet.
	LearningUnderWay Learning = "Learning"
	LearningDone     Learning = "Learned"
)

// FunctionStatus is of one revision.
type FunctionStatus struct {
	Revision string `json:"revision"`
	// Service is the Knative Service of the revision, where it has one.
	//
	// +optional
	Service string `json:"service,omitempty"`

	// Mode is observe, lend or full, as it is in force.
	Mode string `json:"mode"`
	// Source is node or owners, as it is in force on the namespace.
	//
	// +optional
	Source   string   `json:"source,omitempty"`
	Learning Learning `json:"learning"`

	// Reason is why most of the requests that did not take part did not.
	//
	// +optional
	Reason string `json:"reason,omitempty"`

	FunctionFigures `json:",inline"`
}
