"""Keep one array of bytes behind a bare gRPC service: what weights cost as one unary message, with nothing around them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
PUT, GET = "/bench.Unary/Put", "/bench.Unary/Get"


def main() -> None:
    """Serve until the input ends."""
    kept = [b""]

    def put(request: bytes, _: grpc.ServicerContext) -> bytes:
        kept[0] = request
        return b""

    server = grpc.server(ThreadPoolExecutor(2), options=OPTIONS)
    handlers = {"Put": grpc.unary_unary_rpc_method_handler(put), "Get": grpc.unary_unary_rpc_method_handler(lambda *_: kept[0])}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Unary", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    input_ended()
    server.stop(None).wait()


def input_ended() -> None:
    """Wait until nobody will say anything any more."""
    import sys

    sys.stdin.read()


if __name__ == "__main__":
    main()
