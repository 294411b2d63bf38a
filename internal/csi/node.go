package csi

import (
	"context"
	"errors"
	"strconv"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kv3fs/kv3fs/internal/csi/volumes"
)

// service is CSI's identity and node service.
type service struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedNodeServer
	c       Config
	volumes *volumes.Volumes
}

// codeOf translates failures of package volumes.
var codeOf = [...]codes.Code{
	volumes.Invalid:  codes.InvalidArgument,
	volumes.Missing:  codes.NotFound,
	volumes.Taken:    codes.AlreadyExists,
	volumes.Refused:  codes.FailedPrecondition,
	volumes.NotReady: codes.Unavailable,
	volumes.Busy:     codes.Aborted,
}

// answer is the error of a call.
func answer(err error) error {
	var f *volumes.Failure
	_, already := status.FromError(err)
	switch {
	case already: // nil, too
		return err
	case errors.As(err, &f):
		return status.Error(codeOf[f.Kind], err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Internal, err.Error())
}

// GetPluginInfo says what the plugin is.
func (s *service) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: s.c.Name, VendorVersion: s.c.Version}, nil
}

// GetPluginCapabilities returns none: there is no controller.
func (s *service) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	return &spec.GetPluginCapabilitiesResponse{}, nil
}

// Probe says that the plugin lives. It does not look at the mount: a hung disk must not become a restart.
func (s *service) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{}, nil
}

// NodeGetInfo says which node this is.
func (s *service) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	return &spec.NodeGetInfoResponse{NodeId: s.c.Node}, nil
}

// NodeGetCapabilities says what kubelet may ask for.
func (s *service) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	var all []*spec.NodeServiceCapability
	for _, can := range []spec.NodeServiceCapability_RPC_Type{
		spec.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		spec.NodeServiceCapability_RPC_VOLUME_CONDITION,
		spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
	} {
		all = append(all, &spec.NodeServiceCapability{Type: &spec.NodeServiceCapability_Rpc{Rpc: &spec.NodeServiceCapability_RPC{Type: can}}})
	}
	return &spec.NodeGetCapabilitiesResponse{Capabilities: all}, nil
}

// NodePublishVolume binds a volume at its target.
func (s *service) NodePublishVolume(ctx context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	volume, err := s.asked(r)
	if err == nil {
		err = s.allowed(volume, r.GetVolumeContext()[podUID])
	}
	if err == nil {
		err = s.volumes.Publish(ctx, volume)
	}
	if err != nil {
		return nil, answer(err)
	}
	return &spec.NodePublishVolumeResponse{}, nil
}

// asked checks a request and returns what it asks for.
func (s *service) asked(r *spec.NodePublishVolumeRequest) (v volumes.Record, err error) {
	switch {
	case r.GetVolumeId() == "":
		return v, invalid("volume_id is missing")
	case r.GetTargetPath() == "":
		return v, invalid("target_path is missing")
	case r.GetVolumeCapability() == nil:
		return v, invalid("volume_capability is missing")
	case r.GetVolumeCapability().GetMount() == nil:
		return v, invalid("volume_capability: there are no block devices here: set volumeMode: Filesystem")
	}
	as := r.GetVolumeCapability().GetMount()
	switch {
	case as.GetFsType() != "":
		return v, invalid("fsType %q: leave it out: the file system is the daemon's", as.GetFsType())
	case len(as.GetMountFlags()) > 0:
		return v, invalid("mountOptions %q: leave them out; readOnly is an attribute", as.GetMountFlags())
	}
	if v, err = parseAttributes(r.GetVolumeContext()); err != nil {
		return v, err
	}
	v.Volume, v.Target, v.Group = r.GetVolumeId(), r.GetTargetPath(), as.GetVolumeMountGroup()
	if _, err := strconv.ParseUint(v.Group, 10, 32); v.Group != "" && err != nil {
		return v, invalid("volume_mount_group %q: want the number of a group", v.Group)
	}
	switch r.GetVolumeCapability().GetAccessMode().GetMode() {
	case spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		v.ReadOnly = true
	}
	v.ReadOnly = v.ReadOnly || r.GetReadonly()
	return v, nil
}

// NodeUnpublishVolume removes a volume from its target.
func (s *service) NodeUnpublishVolume(ctx context.Context, r *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	switch {
	case r.GetVolumeId() == "":
		return nil, invalid("volume_id is missing")
	case r.GetTargetPath() == "":
		return nil, invalid("target_path is missing")
	}
	if err := s.volumes.Unpublish(ctx, r.GetVolumeId(), r.GetTargetPath()); err != nil {
		return nil, answer(err)
	}
	return &spec.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats says what a volume takes, and whether it works.
func (s *service) NodeGetVolumeStats(ctx context.Context, r *spec.NodeGetVolumeStatsRequest) (*spec.NodeGetVolumeStatsResponse, error) {
	switch {
	case r.GetVolumeId() == "":
		return nil, invalid("volume_id is missing")
	case r.GetVolumePath() == "":
		return nil, invalid("volume_path is missing")
	}
	st, err := s.volumes.Stats(ctx, r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, answer(err)
	}
	condition := &spec.VolumeCondition{Message: "the daemon answers"}
	if st.State != volumes.Live {
		condition.Abnormal, condition.Message = true, string(st.State)+": "+st.Why
	}
	return &spec.NodeGetVolumeStatsResponse{
		Usage:           []*spec.VolumeUsage{{Unit: spec.VolumeUsage_BYTES, Total: st.TotalBytes, Used: st.UsedBytes, Available: st.FreeBytes}},
		VolumeCondition: condition,
	}, nil
}
