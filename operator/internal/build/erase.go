package build

import (
	"path"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// EraseName is that of what removes the files of a cache. No cache is called so that its Name is this.
func EraseName(cache string) string { return "erase-" + Name(cache) }

// Erase returns what removes the files of a cache on all of its nodes: a DaemonSet whose pods are ready when that is done.
func Erase(in Inputs) *appsv1.DaemonSet {
	data := corev1.VolumeMount{Name: "data", MountPath: dataDir}
	if in.Cache.Spec.Data.LocalDisk != nil {
		data.MountPropagation = ptr.To(corev1.MountPropagationHostToContainer)
	}
	program := func(name string, args ...string) corev1.Container {
		return corev1.Container{
			Name: name, Image: in.OperatorImage, Args: args,
			SecurityContext: &corev1.SecurityContext{
				RunAsUser: ptr.To(int64(0)), RunAsGroup: ptr.To(int64(0)), ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
				// Files belong to the users of engines.
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"DAC_OVERRIDE", "FOWNER"}},
			},
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		}
	}
	erase := program("erase", "erase", path.Clean(dataPath(in)))
	erase.VolumeMounts = []corev1.VolumeMount{data}
	return nodesOf(in, EraseName(in.Cache.Name), ComponentErase, corev1.PodSpec{
		InitContainers: []corev1.Container{erase},
		Containers:     []corev1.Container{program("erased", "wait")},
		Volumes:        []corev1.Volume{dataVolume(in.Cache.Spec.Data)},
	})
}
