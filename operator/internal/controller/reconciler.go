// Package controller makes clusters have what KVCaches ask for, and says in their status what is so.
//
// A reconciliation reads, builds everything, applies it as one field owner, removes what it made and needs no more, and writes the status
// last. It waits for nothing: what takes time is looked at again when an event comes, or after Every.
package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kv3fs/kv3fs/operator/api/v1alpha1"
	"github.com/kv3fs/kv3fs/operator/internal/build"
	"github.com/kv3fs/kv3fs/operator/internal/certs"
)

// What the operator may do. Everything it makes is in its own namespace, but for CSIDrivers, which are in none.
//
// +kubebuilder:rbac:groups=kv3fs.io,resources=kvcaches,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=kv3fs.io,resources=kvcaches/status,verbs=patch
// +kubebuilder:rbac:groups=kv3fs.io,resources=kvcaches/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csidrivers,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apps,resources=daemonsets,namespace=kv3fs-system,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=configmaps;secrets;services,namespace=kv3fs-system,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods,namespace=kv3fs-system,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,namespace=kv3fs-system,verbs=get
// +kubebuilder:rbac:groups="",resources=events,namespace=kv3fs-system,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=kv3fs-system,verbs=get;create;update

// Owner is the field owner of everything that the operator applies.
const Owner = client.FieldOwner("kv3fs-operator")

// Reconciler reconciles KVCaches.
type Reconciler struct {
	Client client.Client
	// Direct reads what is not cached: Secrets and claims that users make.
	Direct    client.Reader
	Events    events.EventRecorder
	Namespace string // where everything is made
	Image     string // of kv3fs, unless a cache names one
	Operator  string // image with this program
	// Every is how often daemons are asked how they are.
	Every time.Duration
}

// Cached has a manager's cache keep only what the operator makes, and its pods, where it makes them.
func Cached(namespace string) map[client.Object]cache.ByObject {
	ours := labels.SelectorFromSet(labels.Set{build.LabelManagedBy: build.ManagedBy})
	by := map[client.Object]cache.ByObject{&storagev1.CSIDriver{}: {Label: ours}}
	for _, o := range append(namespaced(), &corev1.Pod{}) {
		by[o] = cache.ByObject{Namespaces: map[string]cache.Config{namespace: {LabelSelector: ours}}}
	}
	return by
}

// made returns one of each kind that the operator makes.
func made() []client.Object { return append(namespaced(), &storagev1.CSIDriver{}) }

func namespaced() []client.Object {
	return []client.Object{&appsv1.DaemonSet{}, &corev1.Service{}, &corev1.ConfigMap{}, &corev1.Secret{}}
}

// SetUp has a manager run the reconciler.
func (r *Reconciler) SetUp(m ctrl.Manager) error {
	b := ctrl.NewControllerManagedBy(m).Named("kvcache").
		For(&v1alpha1.KVCache{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(cacheOf)).
		WatchesMetadata(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.everyCache), builder.WithPredicates(predicate.LabelChangedPredicate{}))
	for _, o := range made() {
		b = b.Owns(o)
	}
	return b.Complete(r)
}

func cacheOf(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[build.LabelInstance]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
}

func (r *Reconciler) everyCache(ctx context.Context, _ client.Object) []reconcile.Request {
	var all v1alpha1.KVCacheList
	if err := r.Client.List(ctx, &all); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "caches cannot be listed: they hear of the change of a node later")
		return nil
	}
	var requests []reconcile.Request
	for _, c := range all.Items {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: c.Name}})
	}
	return requests
}

// Reconcile brings one cache on.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var cache v1alpha1.KVCache
	if err := r.Client.Get(ctx, request.NamespacedName, &cache); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !cache.DeletionTimestamp.IsZero() {
		return r.delete(ctx, &cache)
	}
	found, err := r.check(ctx, &cache)
	if err != nil {
		return reconcile.Result{}, err
	}
	// A cache for which nothing may be made has no files to remove: those that are there are another's.
	if remove := cache.Spec.DeletionPolicy == v1alpha1.Delete; !remove || !found.blocked() {
		if err := r.finalizer(ctx, &cache, remove); err != nil {
			return reconcile.Result{}, err
		}
	}
	due := time.Time{}
	in := build.Inputs{Cache: &cache, Namespace: r.Namespace, Image: r.Image, OperatorImage: r.Operator, Etcd: found.etcd}
	if !found.blocked() {
		if due, err = r.make(ctx, &in); err != nil {
			found.problems = slices.Insert(found.problems, 0, failed(err))
		}
	}
	if err := errors.Join(err, r.observe(ctx, &cache, found.problems)); err != nil {
		return reconcile.Result{}, err
	}
	after := r.Every
	if left := time.Until(due); !due.IsZero() && left < after {
		after = max(left, time.Second)
	}
	return reconcile.Result{RequeueAfter: after}, nil
}

// make applies what a cache needs, and says when it must be made anew.
func (r *Reconciler) make(ctx context.Context, in *build.Inputs) (due time.Time, err error) {
	var old corev1.Secret
	key := types.NamespacedName{Namespace: r.Namespace, Name: build.SecretName(in.Cache.Name)}
	if err := r.Client.Get(ctx, key, &old); client.IgnoreNotFound(err) != nil {
		return due, err
	}
	if in.Secret, due, err = certs.Renewed(old.Data, build.ServerName(in.Cache.Name), time.Now()); err != nil {
		return due, err
	}
	objects, err := build.All(*in)
	if err != nil {
		return due, err
	}
	for _, o := range objects {
		if err := r.apply(ctx, o); err != nil {
			return due, err
		}
	}
	return due, r.prune(ctx, in.Cache, objects)
}

// finalizer has a cache wait for the removal of its files when it is deleted, or not.
func (r *Reconciler) finalizer(ctx context.Context, cache *v1alpha1.KVCache, want bool) error {
	before := cache.DeepCopy()
	changed := false
	if want {
		changed = controllerutil.AddFinalizer(cache, v1alpha1.Finalizer)
	} else {
		changed = controllerutil.RemoveFinalizer(cache, v1alpha1.Finalizer)
	}
	if !changed {
		return nil
	}
	// Others' finalizers are in the same list.
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, cache, patch, Owner); err != nil {
		return fmt.Errorf("set the finalizer of %s: %w", cache.Name, client.IgnoreNotFound(err))
	}
	return nil
}

// delete removes the files of a cache that asks for it, and then lets it go. The rest goes by its owner.
func (r *Reconciler) delete(ctx context.Context, cache *v1alpha1.KVCache) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(cache, v1alpha1.Finalizer) {
		return reconcile.Result{}, nil
	}
	if cache.Spec.DeletionPolicy != v1alpha1.Delete {
		return reconcile.Result{}, r.finalizer(ctx, cache, false)
	}
	in := build.Inputs{Cache: cache, Namespace: r.Namespace, Image: r.Image, OperatorImage: r.Operator}
	shared, err := r.shared(ctx, cache)
	if err != nil {
		return reconcile.Result{}, err
	}
	if shared != "" {
		return reconcile.Result{}, r.spare(ctx, in, shared)
	}
	state, err := r.erase(ctx, in)
	if err != nil {
		state.sick = append(state.sick, failed(err))
		return reconcile.Result{}, errors.Join(err, r.erasing(ctx, cache, state))
	}
	if state.done {
		r.erased(cache, state.nodes)
		return reconcile.Result{}, r.finalizer(ctx, cache, false)
	}
	return reconcile.Result{RequeueAfter: r.Every}, r.erasing(ctx, cache, state)
}

// failed is the problem of what the server does not take.
func failed(err error) problem {
	return problem{reason: "ApplyFailed", message: fmt.Sprintf("what the cache needs could not be made: %v; it is tried again", err)}
}

func gone(err error) bool { return apierrors.IsNotFound(err) }

func kind() schema.GroupVersionKind { return v1alpha1.Version().WithKind("KVCache") }

func owned(o client.Object, cache *v1alpha1.KVCache) bool { return metav1.IsControlledBy(o, cache) }
