package controller

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kv3fs/kv3fs/operator/api/v1alpha1"
	"github.com/kv3fs/kv3fs/operator/internal/build"
)

// erasure is how far the removal of a cache's files is.
type erasure struct {
	done    bool
	nodes   []string // whose files are removed
	message string
	sick    []problem
}

// erase removes the files of a cache on all of its nodes: first the daemons go, then come pods that remove the files.
func (r *Reconciler) erase(ctx context.Context, in build.Inputs) (erasure, error) {
	daemons := &appsv1.DaemonSet{}
	daemons.Namespace, daemons.Name = r.Namespace, build.Name(in.Cache.Name)
	if err := r.Client.Delete(ctx, daemons); client.IgnoreNotFound(err) != nil {
		return erasure{}, fmt.Errorf("stop the daemons of %s: %w", in.Cache.Name, err)
	}
	serving, err := r.pods(ctx, in.Cache, build.ComponentDaemon)
	if err != nil {
		return erasure{}, err
	}
	if len(serving) > 0 {
		return erasure{message: fmt.Sprintf("%d daemons are stopping", len(serving))}, nil
	}
	if err := r.apply(ctx, build.Erase(in)); err != nil {
		return erasure{}, err
	}
	var set appsv1.DaemonSet
	if err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: build.Erase(in).Name}, &set); err != nil {
		return erasure{message: "the removal of files begins"}, client.IgnoreNotFound(err)
	}
	nodes, err := r.nodes(ctx, r.Client, in.Cache)
	if err != nil {
		return erasure{}, err
	}
	s := set.Status
	// The number of nodes is compared as well: a DaemonSet that was just made says that none is wanted.
	if s.ObservedGeneration == set.Generation && s.NumberReady >= s.DesiredNumberScheduled && int(s.DesiredNumberScheduled) >= len(nodes) {
		return erasure{done: true, nodes: nodes}, nil
	}
	erasing, err := r.pods(ctx, in.Cache, build.ComponentErase)
	if err != nil {
		return erasure{}, err
	}
	_, sick := describe(erasing, nil)
	return erasure{sick: sick, message: fmt.Sprintf("the files are removed on %d of %d nodes; set deletionPolicy to Retain to leave those of the others", s.NumberReady, len(nodes))}, nil
}

// shared says which other cache has files where those of a cache would be removed, or "". One that waits for the directory to become free has none.
func (r *Reconciler) shared(ctx context.Context, cache *v1alpha1.KVCache) (string, error) {
	var all v1alpha1.KVCacheList
	if err := r.Direct.List(ctx, &all); err != nil {
		return "", fmt.Errorf("list caches: %w", err)
	}
	var nodes []string
	for i := range all.Items {
		other := &all.Items[i]
		what := sameFiles(cache.Spec.Data, other.Spec.Data)
		if other.UID == cache.UID || what == "" {
			continue
		}
		if !older(other, cache) {
			var daemons appsv1.DaemonSet
			err := r.Direct.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: build.Name(other.Name)}, &daemons)
			if gone(err) {
				continue
			}
			if err != nil {
				return "", fmt.Errorf("look for the daemons of %s: %w", other.Name, err)
			}
		}
		if cache.Spec.Data.Claim != nil {
			return fmt.Sprintf("%s is also that of KVCache %s", what, other.Name), nil
		}
		if nodes == nil {
			var err error
			if nodes, err = r.nodes(ctx, r.Direct, cache); err != nil {
				return "", err
			}
		}
		theirs, err := r.nodes(ctx, r.Direct, other)
		if err != nil {
			return "", err
		}
		if common := common(nodes, theirs); len(common) > 0 {
			return fmt.Sprintf("%s is also that of KVCache %s on %s", what, other.Name, few(common)), nil
		}
	}
	return "", nil
}

// spare lets a cache go and leaves its files, which are also another's.
func (r *Reconciler) spare(ctx context.Context, in build.Inputs, shared string) error {
	if err := r.Client.Delete(ctx, build.Erase(in)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("stop the removal of the files of %s: %w", in.Cache.Name, err)
	}
	r.Events.Eventf(in.Cache, nil, corev1.EventTypeWarning, "DataInUse", "Delete", "no files were removed on any node: %s; remove by hand what is nobody's", shared)
	return r.finalizer(ctx, in.Cache, false)
}

// erased says which files were removed, and which were not.
func (r *Reconciler) erased(cache *v1alpha1.KVCache, nodes []string) {
	if len(nodes) == 0 {
		r.Events.Eventf(cache, nil, corev1.EventTypeWarning, "NoNodes", "Delete", "no files were removed: no node has the labels %s; remove by hand what is on nodes that had them, or in the claim",
			selectorText(build.NodeSelector(cache)))
		return
	}
	r.Events.Eventf(cache, nil, corev1.EventTypeNormal, "DataDeleted", "Delete", "the files were removed on %s; any on nodes that lost the labels %s before are still there", few(nodes), selectorText(build.NodeSelector(cache)))
}

// erasing says how far it is.
func (r *Reconciler) erasing(ctx context.Context, cache *v1alpha1.KVCache, state erasure) error {
	status := *cache.Status.DeepCopy()
	status.Hosts, status.ReadyHosts, status.Nodes, status.MoreNodes = 0, 0, nil, 0
	condition := conditions(&status, cache)
	condition(v1alpha1.Ready, false, "DeletingData", state.message)
	condition(v1alpha1.Progressing, true, "DeletingData", state.message)
	degraded(condition, state.sick, texts(state.sick))
	return r.write(ctx, cache, status)
}

// pods returns those of a component.
func (r *Reconciler) pods(ctx context.Context, cache *v1alpha1.KVCache, component string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(r.Namespace), client.MatchingLabels(build.Selector(cache.Name, component))); err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", cache.Name, err)
	}
	return slices.Clip(pods.Items), nil
}
