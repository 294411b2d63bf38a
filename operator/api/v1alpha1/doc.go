// Package v1alpha1 is the API group kv3fs.io: what users write to have a KV cache in their cluster.
//
// +kubebuilder:object:generate=true
// +groupName=kv3fs.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group.
const GroupName = "kv3fs.io"

// Version returns the group and version of this package.
func Version() schema.GroupVersion { return schema.GroupVersion{Group: GroupName, Version: "v1alpha1"} }

// AddToScheme teaches a scheme this package's types.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(Version(), &KVCache{}, &KVCacheList{})
	metav1.AddToGroupVersion(s, Version())
	return nil
}
