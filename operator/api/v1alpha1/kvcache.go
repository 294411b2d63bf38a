package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// KVCache is a KV cache for LLM inference engines: a kv3fs daemon on each node that it is placed on, which engines' pods use by a
// volume. It belongs to the cluster, as the directories of nodes do that it is in; what the operator makes for it is in the operator's namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=kvc
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Hosts",type=integer,JSONPath=`.status.hosts`
// +kubebuilder:printcolumn:name="Serving",type=integer,JSONPath=`.status.readyHosts`
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.used`
// +kubebuilder:printcolumn:name="Hits",type=string,JSONPath=`.status.hitRate`
// +kubebuilder:printcolumn:name="Leader",type=string,JSONPath=`.status.leader`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 31 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="the name must be at most 31 lower-case letters, digits and '-', and begin with a letter: it names the file system and what is made for it"
type KVCache struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec KVCacheSpec `json:"spec"`
	// +optional
	Status KVCacheStatus `json:"status,omitempty"`
}

// KVCacheList is what a list of caches is answered with.
//
// +kubebuilder:object:root=true
type KVCacheList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KVCache `json:"items"`
}

// KVCacheSpec is what the user wants.
//
// +kubebuilder:validation:XValidation:rule="!has(self.pageService.etcd) || has(self.data.claim)",message="pageService.etcd is for hosts that share one directory: give data.claim, or leave out pageService.etcd"
type KVCacheSpec struct {
	// Image of kv3fs, and of its CSI plugin. Default: that which the operator was given.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// Where the files are.
	Data Data `json:"data"`

	// How much the files may take on each node, or together in a claim: a size such as 10Ti, or a part of the file system such as 80%.
	// What was used longest ago is removed to make room. The default leaves what kubelet wants free on its own disk.
	// +kubebuilder:default="80%"
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.endsWith('%') ? self.matches('^([1-9][0-9]?|100)%$') : self.matches('^[1-9][0-9]*(Mi|Gi|Ti|Pi)$')",message="must be a size such as 10Ti (Mi, Gi, Ti or Pi), or a part of the file system from 1% to 100%"
	Capacity string `json:"capacity,omitempty"`

	// The page service of vLLM's and SGLang's connectors.
	// +kubebuilder:default={}
	PageService PageService `json:"pageService,omitempty"`

	// Which namespaces may use which directories by volumes. Left out: all may use everything. Once there is one, all else is refused.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Access []Access `json:"access,omitempty"`

	// Resources of the daemon. Its memory is the page index, some hundred bytes for each file, and pages of engines' buffers that it touched first; a
	// limit that these exceed has it killed.
	// +kubebuilder:default={requests: {cpu: "1", memory: "2Gi"}}
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// Which nodes have the cache.
	// +kubebuilder:default={}
	Placement Placement `json:"placement,omitempty"`

	// How nodes get a new version or configuration.
	// +kubebuilder:default={}
	UpdateStrategy UpdateStrategy `json:"updateStrategy,omitempty"`

	// What becomes of the files when this object is deleted. Retain: they stay, and another KVCache with the same data finds them. Delete: they are
	// removed on every node, or from the claim, before the object goes.
	// +kubebuilder:default=Retain
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// Further keys of kv3fs's configuration file, such as workers or deadline (docs/reference/configuration.md), and their values.
	// +optional
	// +mapType=granular
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^[a-z][a-z0-9-]*$') && !(k in ['data', 'mount', 'remount', 'cluster', 'identity', 'capacity', 'data-must-exist', 'data-must-be-mount', 'restart-state', 'on-term', 'readonly']) && !k.startsWith('admin-') && !k.startsWith('pages-listen') && !k.startsWith('pages-host') && !k.startsWith('pages-store') && !k.startsWith('pages-peer') && !k.startsWith('pages-token'))",message="a key is not one of kv3fs serve, or is one that the operator sets itself"
	Settings map[string]string `json:"settings,omitempty"`
}

// Data says where the files are: one of its members. It cannot be changed, since another directory is another cache.
//
// +kubebuilder:validation:XValidation:rule="[has(self.hostPath), has(self.localDisk), has(self.claim)].exists_one(x, x)",message="give exactly one of hostPath, localDisk and claim"
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed, since another directory is another cache: make another KVCache"
type Data struct {
	// A directory of each node.
	// +optional
	HostPath *HostPath `json:"hostPath,omitempty"`

	// A disk that each node has mounted. Nothing is served, and nothing is written to the root disk, while it is not mounted.
	// +optional
	LocalDisk *LocalDisk `json:"localDisk,omitempty"`

	// A PersistentVolumeClaim in the operator's namespace. With more than one node, it must be ReadWriteMany.
	// +optional
	Claim *Claim `json:"claim,omitempty"`
}

// HostPath is a directory of each node.
type HostPath struct {
	// Made if missing.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[^/]+){2,}$') && !self.contains('/../') && !self.endsWith('/..') && !self.contains('/./') && !self.endsWith('/.')",message="must be an absolute path with at least two parts, such as /var/lib/kv3fs-data, without '..' and no '/' at its end"
	Path string `json:"path"`
}

// LocalDisk is a disk that each node has mounted.
type LocalDisk struct {
	// Where it is mounted.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[^/]+){2,}$') && !self.contains('/../') && !self.endsWith('/..') && !self.contains('/./') && !self.endsWith('/.')",message="must be an absolute path with at least two parts, such as /mnt/nvme0, without '..' and no '/' at its end"
	MountPoint string `json:"mountPoint"`
}

// Claim is a PersistentVolumeClaim.
type Claim struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Access lets pods of a namespace have volumes.
type Access struct {
	// A namespace, or * for every one.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$`
	Namespace string `json:"namespace"`
	// Below the cache's root; {namespace} stands for the namespace's name.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^/,=]+(/[^/,=]+)*$') && !('..' in self.split('/')) && !('.' in self.split('/'))",message="must be a path below the cache's root, such as team-a/{namespace}, without '..', ',' and '='"
	Directory string `json:"directory"`
}

// PageService says how keys are found.
type PageService struct {
	// The port at which the Service kv3fs-NAME has it, on each node for the pods of that node.
	// +kubebuilder:default=18000
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// A Secret in the operator's namespace whose key token engines must show. Without it, every pod that reaches the port may use the service.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TokenSecret string `json:"tokenSecret,omitempty"`

	// One index for all hosts that share a claim, in etcd. Without it, each node has an index of its own.
	// +optional
	Etcd *Etcd `json:"etcd,omitempty"`
}

// Etcd is where many hosts keep one page index.
type Etcd struct {
	// HOST:PORT of its members.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=9
	// +kubebuilder:validation:items:MaxLength=260
	// +kubebuilder:validation:items:Pattern=`^([a-zA-Z0-9.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$`
	Endpoints []string `json:"endpoints"`

	// Below which its keys are. Default: kv3fs/NAME.
	// +optional
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9._-]+(/[a-zA-Z0-9._-]+)*$`
	Prefix string `json:"prefix,omitempty"`

	// A Secret in the operator's namespace with what etcd wants of its clients: ca.crt for TLS; tls.crt and tls.key for a client's certificate; username
	// and password. What it does not have is not used.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Secret string `json:"secret,omitempty"`
}

// Placement says which nodes have the cache.
type Placement struct {
	// Labels of the nodes. Default: all nodes with Linux.
	// +optional
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=32
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Taints that do not keep it away. Default: none does.
	// +kubebuilder:default={{operator: Exists}}
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
}

// UpdateStrategy says how nodes get a new version or configuration.
type UpdateStrategy struct {
	// RollingUpdate: node after node. OnDelete: a node gets it when its pod is deleted.
	// +kubebuilder:default=RollingUpdate
	// +kubebuilder:validation:Enum=RollingUpdate;OnDelete
	Type string `json:"type,omitempty"`

	// How many nodes, or which part of them, get it at once.
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 : self.matches('^([1-9][0-9]?|100)%$')",message="must be a number above 0, or a part from 1% to 100%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// DeletionPolicy says what becomes of the files.
//
// +kubebuilder:validation:Enum=Retain;Delete
type DeletionPolicy string

// What becomes of the files when the object is deleted.
const (
	Retain DeletionPolicy = "Retain"
	Delete DeletionPolicy = "Delete"
)

// Finalizer keeps a cache whose files are to be deleted with it until they are.
const Finalizer = "kv3fs.io/delete-data"

// Types of conditions.
const (
	Ready       = "Ready"       // every node serves what the spec asks for
	Progressing = "Progressing" // something is being made or changed
	Degraded    = "Degraded"    // somebody must do something, and the message says what
)

// KVCacheStatus is what is so.
type KVCacheStatus struct {
	// The generation of the spec that this was made for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Ready, Progressing and Degraded.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Nodes that shall have a daemon.
	// +optional
	Hosts int32 `json:"hosts"`
	// Nodes whose daemon is ready.
	// +optional
	ReadyHosts int32 `json:"readyHosts"`

	// The host that leads the page service, if that is in etcd.
	// +optional
	Leader string `json:"leader,omitempty"`

	// What the files take, on all nodes together or in the claim, as far as it was read.
	// +optional
	Used *resource.Quantity `json:"used,omitempty"`

	// The part of lookups, by file and by page, that found what they looked for, since the daemons' start. Left out while nothing was looked up.
	// +optional
	HitRate string `json:"hitRate,omitempty"`

	// The nodes, by name, and those with a message first. At most 100.
	// +optional
	// +listType=map
	// +listMapKey=name
	Nodes []NodeStatus `json:"nodes,omitempty"`
	// Nodes that are not shown.
	// +optional
	MoreNodes int32 `json:"moreNodes,omitempty"`

	// Where the mount is on nodes. It is given out by the directory above it, with mount propagation HostToContainer.
	// +optional
	MountPath string `json:"mountPath,omitempty"`
}

// NodeStatus is how the cache is on a node.
type NodeStatus struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
	// What the files take here. With a claim, the node that keeps it says so for all.
	// +optional
	Used *resource.Quantity `json:"used,omitempty"`
	// +optional
	HitRate string `json:"hitRate,omitempty"`
	// What is wrong here, or could not be read, and what to do.
	// +optional
	Message string `json:"message,omitempty"`
}
