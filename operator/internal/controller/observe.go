package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/operator/api/v1alpha1"
	"github.com/kv3fs/kv3fs/operator/internal/build"
	"github.com/kv3fs/kv3fs/operator/internal/certs"
	"github.com/kv3fs/kv3fs/operator/internal/daemons"
)

// mostNodes are shown in a status, which is one object of etcd.
const mostNodes = 100

// observe writes a cache's status.
func (r *Reconciler) observe(ctx context.Context, cache *v1alpha1.KVCache, problems []problem) error {
	var set appsv1.DaemonSet
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: build.Name(cache.Name)}, &set)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	pods, err := r.pods(ctx, cache, build.ComponentDaemon)
	if err != nil {
		return err
	}
	answers, err := r.ask(ctx, cache, pods)
	if err != nil {
		return err
	}
	status := v1alpha1.KVCacheStatus{
		Conditions: slices.Clone(cache.Status.Conditions),
		Hosts:      set.Status.DesiredNumberScheduled,
		ReadyHosts: set.Status.NumberReady,
		MountPath:  build.MountPath(cache.Name),
	}
	nodes, sick := describe(pods, answers)
	problems = append(problems, sick...)
	if short := set.Status.DesiredNumberScheduled - set.Status.CurrentNumberScheduled; short > 0 {
		problems = append(problems, problem{reason: "NoPods", message: fmt.Sprintf("%d nodes have no pod of DaemonSet %s in namespace %s: its events say why; the namespace must allow privileged pods (label pod-security.kubernetes.io/enforce=privileged)", short, set.Name, r.Namespace)})
	}
	status.Used, status.HitRate, status.Leader = totals(answers, cache.Spec.Data.Claim != nil)
	status.Nodes = nodes
	if len(nodes) > mostNodes {
		status.Nodes, status.MoreNodes = nodes[:mostNodes], int32(len(nodes)-mostNodes)
	}
	judge(&status, cache, &set, problems)
	return r.write(ctx, cache, status)
}

// ask asks the daemons of running pods.
func (r *Reconciler) ask(ctx context.Context, cache *v1alpha1.KVCache, pods []corev1.Pod) (map[string]daemons.Result, error) {
	var all []daemons.Daemon
	for i := range pods {
		if address := addressOf(&pods[i]); address != "" {
			all = append(all, daemons.Daemon{Node: pods[i].Spec.NodeName, Address: address})
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	var secret corev1.Secret
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: build.SecretName(cache.Name)}, &secret)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return daemons.Ask(ctx, secret.Data[certs.Trust], build.ServerName(cache.Name), string(secret.Data[certs.Token]), all)
}

// addressOf returns where the daemon of a pod can be asked, or "".
func addressOf(pod *corev1.Pod) string {
	if pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" || !pod.DeletionTimestamp.IsZero() {
		return ""
	}
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == build.AdminPortName {
				return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(p.ContainerPort)))
			}
		}
	}
	return ""
}

// describe says how each node is, those with a message first, and what somebody must do something about.
func describe(pods []corev1.Pod, answers map[string]daemons.Result) (nodes []v1alpha1.NodeStatus, problems []problem) {
	byReason := map[string][]string{}
	firstOf := map[string]string{}
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.NodeName == "" || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		n := v1alpha1.NodeStatus{Name: pod.Spec.NodeName, Ready: ready(pod)}
		reason, message := ailment(pod)
		if a, asked := answers[n.Name]; asked {
			if a.Err != nil {
				n.Message = "the daemon could not be asked: " + a.Err.Error()
			} else {
				n.Used, n.HitRate = used(a.Answer), rate(lookups(a.Answer))
				if reason == "" {
					reason, message = complaint(a.Status)
				}
			}
		}
		if reason != "" {
			n.Message = message
			byReason[reason] = append(byReason[reason], n.Name)
			if firstOf[reason] == "" || n.Name < slices.Min(byReason[reason]) {
				firstOf[reason] = message
			}
		}
		n.Message = cut(n.Message)
		nodes = append(nodes, n)
	}
	nodes = oneEach(nodes)
	for reason, on := range byReason {
		slices.Sort(on)
		problems = append(problems, problem{reason: reason, message: fmt.Sprintf("%s: %s", few(slices.Compact(on)), firstOf[reason])})
	}
	slices.SortFunc(problems, func(a, b problem) int { return cmp.Compare(a.reason, b.reason) })
	return nodes, problems
}

// oneEach leaves one entry for each node, as two pods may be there during an update, and sorts them.
func oneEach(nodes []v1alpha1.NodeStatus) []v1alpha1.NodeStatus {
	slices.SortFunc(nodes, func(a, b v1alpha1.NodeStatus) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), -cmp.Compare(number(a.Ready), number(b.Ready)))
	})
	nodes = slices.CompactFunc(nodes, func(a, b v1alpha1.NodeStatus) bool { return a.Name == b.Name })
	slices.SortStableFunc(nodes, func(a, b v1alpha1.NodeStatus) int {
		return cmp.Compare(number(a.Message == ""), number(b.Message == ""))
	})
	return nodes
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// ailment says why a pod does not run.
func ailment(pod *corev1.Pod) (reason, message string) {
	if pod.Status.Phase == corev1.PodFailed {
		return "PodFailed", fmt.Sprintf("pod %s has failed: %s %s", pod.Name, pod.Status.Reason, pod.Status.Message)
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		ended, waits := c.State.Terminated, c.State.Waiting
		if waits != nil && waits.Reason != "" && waits.Reason != "ContainerCreating" && waits.Reason != "PodInitializing" {
			reason, message = waits.Reason, waits.Message
			ended = c.LastTerminationState.Terminated
		}
		if ended != nil && ended.ExitCode != 0 {
			reason = cmp.Or(reason, "ContainerEnded")
			message = fmt.Sprintf("it ended with %d: %s", ended.ExitCode, cmp.Or(lastWords(ended.Message), ended.Reason))
		}
		if reason != "" {
			return reason, fmt.Sprintf("container %s of pod %s: %s", c.Name, pod.Name, message)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "Unschedulable", fmt.Sprintf("pod %s: %s", pod.Name, c.Message)
		}
	}
	return "", ""
}

// complaint says what a daemon finds wrong itself.
func complaint(s api.Status) (reason, message string) {
	for _, c := range s.Checks {
		if !c.Ready {
			return "DaemonUnhealthy", fmt.Sprintf("%s: %s", c.Name, c.Error)
		}
	}
	if s.Findings == nil {
		return "", ""
	}
	for _, f := range s.Findings.Top {
		if f.Status == api.FindingFailure {
			return "CheckFailed", fmt.Sprintf("%s: %s; %s", f.ID, f.Found, f.Fix)
		}
	}
	return "", ""
}

// totals are what all daemons say together. The files of a claim are the same for all, and one counts them.
func totals(answers map[string]daemons.Result, shared bool) (all *resource.Quantity, hitRate, leader string) {
	bytes, known := int64(0), false
	hits, asked := int64(0), int64(0)
	for _, a := range answers {
		if a.Err != nil {
			continue
		}
		if k := a.Status.Keeper; k != nil {
			known = true
			if shared {
				bytes = max(bytes, k.UsedBytes)
			} else {
				bytes += k.UsedBytes
			}
		}
		h, l := lookups(a.Answer)
		hits, asked = hits+h, asked+l
		leader = max(leader, a.Hosts.Leader)
	}
	if known {
		all = quantity(bytes)
	}
	return all, rate(hits, asked), leader
}

func used(a daemons.Answer) *resource.Quantity {
	if a.Status.Keeper == nil {
		return nil
	}
	return quantity(a.Status.Keeper.UsedBytes)
}

// quantity is bytes in MiB, which people read.
func quantity(bytes int64) *resource.Quantity {
	return resource.NewQuantity(bytes>>20<<20, resource.BinarySI)
}

// lookups counts those by file and by page, and which of them found something.
func lookups(a daemons.Answer) (hits, all int64) {
	hits, all = a.Hits.Hits, a.Hits.Lookups
	for _, s := range a.Pages.Spaces {
		hits += s.Counters.Hits
		all += s.Counters.Hits + s.Counters.Misses
	}
	return hits, all
}

func rate(hits, all int64) string {
	if all == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f%%", 100*float64(hits)/float64(all))
}

// lastWords are the last line of a log, as far as people need it.
func lastWords(log string) string {
	line := strings.TrimSpace(log)
	line = line[strings.LastIndexByte(line, '\n')+1:]
	var entry struct {
		Message string `json:"msg"`
		Error   string `json:"err"`
	}
	if json.Unmarshal([]byte(line), &entry) == nil && entry.Message != "" {
		line = entry.Message
		if entry.Error != "" {
			line += ": " + entry.Error
		}
	}
	return cut(line)
}

// cut bounds a message, so that a status with many of them is no large object.
func cut(message string) string {
	const most = 500
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most], "") + "..."
}
