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
	nodes, err := r.nodes(ctx, in.Cache)
	if err != nil {
		return erasure{}, err
	}
	s := set.Status
	// The number of nodes is compared as well: a DaemonSet that was just made says that none is wanted.
	if s.ObservedGeneration == set.Generation && s.NumberReady >= s.DesiredNumberScheduled && int(s.DesiredNumberScheduled) >= len(nodes) {
		return erasure{done: true}, nil
	}
	erasing, err := r.pods(ctx, in.Cache, build.ComponentErase)
	if err != nil {
		return erasure{}, err
	}
	_, sick := describe(erasing, nil)
	return erasure{sick: sick, message: fmt.Sprintf("the files are removed on %d of %d nodes; set deletionPolicy to Retain to leave those of the others", s.NumberReady, len(nodes))}, nil
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
