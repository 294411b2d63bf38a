package controller

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kv3fs/kv3fs/operator/api/v1alpha1"
)

// judge sets the conditions.
func judge(s *v1alpha1.KVCacheStatus, cache *v1alpha1.KVCache, set *appsv1.DaemonSet, problems []problem) {
	condition := conditions(s, cache)
	blocks := func(p problem) bool { return p.blocks }
	if i := slices.IndexFunc(problems, blocks); i > 0 { // what keeps all from going on comes first
		problems[0], problems[i] = problems[i], problems[0]
	}
	text := texts(problems)
	degraded(condition, problems, text)
	if slices.ContainsFunc(problems, blocks) {
		condition(v1alpha1.Ready, false, problems[0].reason, text)
		condition(v1alpha1.Progressing, false, problems[0].reason, "nothing is made or changed until that is cured: "+text)
		return
	}
	d := set.Status
	serving := fmt.Sprintf("%d of %d nodes serve", d.NumberReady, d.DesiredNumberScheduled)
	switch {
	case set.Name == "" || d.ObservedGeneration < set.Generation || d.UpdatedNumberScheduled < d.DesiredNumberScheduled:
		current := fmt.Sprintf("%d of %d nodes have the current version", d.UpdatedNumberScheduled, d.DesiredNumberScheduled)
		if cache.Spec.UpdateStrategy.Type == string(appsv1.OnDeleteDaemonSetStrategyType) {
			condition(v1alpha1.Progressing, true, "WaitsForDeletion", current+": delete the pods of the others, as updateStrategy.type is OnDelete")
		} else {
			condition(v1alpha1.Progressing, true, "RollingOut", current)
		}
	case d.NumberReady < d.DesiredNumberScheduled:
		condition(v1alpha1.Progressing, true, "Starting", serving)
	default:
		condition(v1alpha1.Progressing, false, "AsSpecified", "every node has the current version")
	}
	switch {
	case d.DesiredNumberScheduled == 0 && len(problems) > 0:
		condition(v1alpha1.Ready, false, problems[0].reason, text)
	case d.DesiredNumberScheduled == 0 || d.NumberReady < d.DesiredNumberScheduled:
		condition(v1alpha1.Ready, false, "NotServing", serving)
	default:
		condition(v1alpha1.Ready, true, "Serving", serving)
	}
}

// setter sets a condition.
type setter func(kind string, status bool, reason, message string)

func conditions(s *v1alpha1.KVCacheStatus, cache *v1alpha1.KVCache) setter {
	s.ObservedGeneration = cache.Generation
	return func(kind string, status bool, reason, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: cache.Generation}
		if status {
			c.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&s.Conditions, c)
	}
}

func degraded(condition setter, problems []problem, text string) {
	if len(problems) == 0 {
		condition(v1alpha1.Degraded, false, "AsExpected", "nothing is wrong")
		return
	}
	condition(v1alpha1.Degraded, true, problems[0].reason, text)
}

func texts(problems []problem) string {
	var all []string
	for _, p := range problems {
		all = append(all, p.message)
	}
	return strings.Join(all, "; ")
}

// write writes a status that has changed, and tells of what is newly wrong, or well again, by an event.
func (r *Reconciler) write(ctx context.Context, cache *v1alpha1.KVCache, status v1alpha1.KVCacheStatus) error {
	before := meta.FindStatusCondition(cache.Status.Conditions, v1alpha1.Degraded)
	after := meta.FindStatusCondition(status.Conditions, v1alpha1.Degraded)
	if !reflect.DeepEqual(cache.Status, status) {
		if err := r.applyStatus(ctx, cache, status); err != nil {
			return err
		}
	}
	switch {
	case after == nil:
	case after.Status == metav1.ConditionTrue && (before == nil || before.Status != after.Status || before.Reason != after.Reason || before.Message != after.Message):
		r.Events.Eventf(cache, nil, corev1.EventTypeWarning, after.Reason, "Reconcile", "%s", cut(after.Message))
	case after.Status == metav1.ConditionFalse && before != nil && before.Status == metav1.ConditionTrue:
		r.Events.Eventf(cache, nil, corev1.EventTypeNormal, after.Reason, "Reconcile", "what was wrong is over: %s", cut(before.Message))
	}
	return nil
}

func (r *Reconciler) applyStatus(ctx context.Context, cache *v1alpha1.KVCache, status v1alpha1.KVCacheStatus) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return fmt.Errorf("convert the status of %s: %w", cache.Name, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": fields}}
	u.SetGroupVersionKind(kind())
	u.SetName(cache.Name)
	u.SetUID(cache.UID) // none is made where this one is gone
	if err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), Owner, client.ForceOwnership); err != nil {
		return fmt.Errorf("write the status of %s: %w", cache.Name, err)
	}
	return nil
}
