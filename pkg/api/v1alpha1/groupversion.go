// Package v1alpha1 holds the objects in which operators say how far Libra goes and where functions run, and
// in which Libra reports on functions.
//
// +kubebuilder:object:generate=true
// +groupName=libra.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	GroupVersion  = schema.GroupVersion{Group: "libra.dev", Version: "v1alpha1"}
	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	AddToScheme   = schemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&PlacementPolicy{}, &PlacementPolicyList{},
		&ClusterPlacementPolicy{}, &ClusterPlacementPolicyList{},
		&FunctionReport{}, &FunctionReportList{},
		&HarvestPolicy{}, &HarvestPolicyList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
