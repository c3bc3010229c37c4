package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

func newAsker(protocol, address string) (asker, error) {
	if protocol == "grpc" {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, fmt.Errorf("connecting to %s: %w", address, err)
		}
		return &grpcAsker{conn: conn}, nil
	}
	return &restAsker{
		base:   "http://" + address,
		client: &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}},
	}, nil
}

type restAsker struct {
	base   string
	client *http.Client
	answer bytes.Buffer
}

func (a *restAsker) ask(ctx context.Context, model string, size int64) error {
	body, err := json.Marshal(map[string]any{"inputs": []any{
		map[string]any{"name": "size", "shape": []int{1}, "datatype": "INT64", "data": []int64{size}},
	}})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+"/v2/models/"+model+"/infer", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	a.answer.Reset()
	if _, err := io.Copy(&a.answer, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s: %.200s", req.URL.Redacted(), resp.Status, a.answer.Bytes())
	}
	return answered(a.answer.Bytes())
}

func (a *restAsker) close() { a.client.CloseIdleConnections() }

// grpcAsker writes its one message by hand: of the protocol no more is needed.
type grpcAsker struct {
	conn *grpc.ClientConn
}

func (a *grpcAsker) ask(ctx context.Context, model string, size int64) error {
	var answer []byte
	err := a.conn.Invoke(ctx, "/inference.GRPCInferenceService/ModelInfer", inferMessage(model, size), &answer, grpc.ForceCodecV2(asIs{}))
	if err != nil {
		return err
	}
	return answered(answer)
}

func (a *grpcAsker) close() { _ = a.conn.Close() }

// answered says whether there is an answer in it, in either encoding.
func answered(answer []byte) error {
	if !bytes.Contains(answer, []byte("memory_bytes")) {
		return errors.New(`the answer has no output "memory_bytes"`)
	}
	return nil
}

// Field numbers of inference.ModelInferRequest and what is in it.
const (
	requestModel, requestInputs                         = 1, 5
	inputName, inputDatatype, inputShape, inputContents = 1, 2, 3, 5
	contentsInt64                                       = 3
)

func inferMessage(model string, size int64) []byte {
	packed := func(message []byte, field protowire.Number, value int64) []byte {
		message = protowire.AppendTag(message, field, protowire.BytesType)
		return protowire.AppendBytes(message, protowire.AppendVarint(nil, uint64(value)))
	}
	text := func(message []byte, field protowire.Number, value string) []byte {
		message = protowire.AppendTag(message, field, protowire.BytesType)
		return protowire.AppendString(message, value)
	}
	nested := func(message []byte, field protowire.Number, value []byte) []byte {
		message = protowire.AppendTag(message, field, protowire.BytesType)
		return protowire.AppendBytes(message, value)
	}
	input := text(nil, inputName, "size")
	input = text(input, inputDatatype, "INT64")
	input = packed(input, inputShape, 1)
	input = nested(input, inputContents, packed(nil, contentsInt64, size))
	return nested(text(nil, requestModel, model), requestInputs, input)
}

// asIs is a codec for messages that are bytes.
type asIs struct{}

func (asIs) Name() string { return "proto" }

func (asIs) Marshal(v any) (mem.BufferSlice, error) {
	message, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("%T is not a message", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(message)}, nil
}

func (asIs) Unmarshal(data mem.BufferSlice, v any) error {
	message, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("%T is not a message", v)
	}
	*message = data.Materialize()
	return nil
}
