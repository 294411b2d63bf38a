package controller

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/kv3fs/kv3fs/operator/api/v1alpha1"
	"github.com/kv3fs/kv3fs/operator/internal/build"
)

// apply makes an object be as it was built. Fields of others stay; those that are ours are taken back.
func (r *Reconciler) apply(ctx context.Context, o client.Object) error {
	u, err := content(o)
	if err != nil {
		return err
	}
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), Owner, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

// content returns what there is to be said of an object, without what the server says.
func content(o client.Object) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("convert %s: %w", o.GetName(), err)
	}
	u := &unstructured.Unstructured{Object: fields}
	for _, path := range [][]string{{"status"}, {"metadata", "creationTimestamp"}, {"spec", "template", "metadata", "creationTimestamp"}} {
		unstructured.RemoveNestedField(u.Object, path...)
	}
	return u, nil
}

// prune removes what was made for a cache and is not among what it needs now.
func (r *Reconciler) prune(ctx context.Context, cache *v1alpha1.KVCache, needed []client.Object) error {
	keep := map[string]bool{}
	for _, o := range needed {
		keep[o.GetObjectKind().GroupVersionKind().Kind+"/"+o.GetName()] = true
	}
	for _, one := range made() {
		gvk, err := apiutil.GVKForObject(one, r.Client.Scheme())
		if err != nil {
			return err
		}
		there, err := r.Client.Scheme().New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err != nil {
			return err
		}
		list, ok := there.(client.ObjectList)
		if !ok {
			return fmt.Errorf("%T is no list", there)
		}
		// What is in no namespace is listed, too.
		if err := r.Client.List(ctx, list, client.InNamespace(r.Namespace), client.MatchingLabels(build.Labels(cache.Name))); err != nil {
			return fmt.Errorf("list what was made for %s: %w", cache.Name, err)
		}
		if err := meta.EachListItem(list, func(item runtime.Object) error {
			o, ok := item.(client.Object)
			if !ok || keep[gvk.Kind+"/"+o.GetName()] || !owned(o, cache) {
				return nil
			}
			return client.IgnoreNotFound(r.Client.Delete(ctx, o, client.Preconditions{UID: ptr.To(o.GetUID())}))
		}); err != nil {
			return fmt.Errorf("remove what %s needs no more: %w", cache.Name, err)
		}
	}
	return nil
}
