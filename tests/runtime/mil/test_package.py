"""Packages that are damaged, incomplete or something else: one error of the executor's own, never a stack trace or a loop without end."""

import contextlib
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.mil import (
    CallError,
    Executor,
    MilError,
    Package,
    PackageError,
    UnsupportedError,
    describe,
    describe_text,
)
from runtime.mil.weights import unpack_bits

ct = pytest.importorskip("coremltools")
from coremltools.converters.mil import Builder as mb  # noqa: E402
from coremltools.converters.mil.mil import get_new_symbol, types  # noqa: E402

MODEL, WEIGHTS = "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin"


def save(program, path: Path, precision=None) -> Path:
    precision = precision or ct.precision.FLOAT32
    ct.convert(
        program, minimum_deployment_target=ct.target.iOS18, compute_precision=precision, skip_model_load=True
    ).save(str(path))
    return path


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    @mb.program(input_specs=[mb.TensorSpec((2, 16))], opset_version=ct.target.iOS18)
    def program(x):
        weight = np.random.default_rng(0).standard_normal((24, 16)).astype(np.float32)
        return mb.softmax(x=mb.linear(x=x, weight=weight), axis=-1, name="y")

    return save(program, tmp_path_factory.mktemp("mil") / "small.mlpackage")


@pytest.fixture
def copy(package, tmp_path) -> Path:
    return Path(shutil.copytree(package, tmp_path / "copy.mlpackage"))


def run(path: Path) -> np.ndarray:
    executor = Executor(Package(path).function())
    return executor.run({"x": np.ones((2, 16), np.float32)}, executor.new_states())["y"]


def edit(path: Path, change) -> None:
    """Changes the specification of a package."""
    spec = ct.utils.load_spec(str(path / MODEL))
    change(spec)
    (path / MODEL).write_bytes(spec.SerializeToString())


def main_block(spec):
    return spec.mlProgram.functions["main"].block_specializations["CoreML8"]


def operation(spec, kind):
    return next(op for op in main_block(spec).operations if op.type == kind)


def test_a_package_runs_and_is_described(package):
    np.testing.assert_allclose(run(package).sum(-1), 1, rtol=1e-6)
    text = describe_text(describe(Package(package)))
    assert (
        "function main (default), op set CoreML8" in text and "1 linear" in text and "fp32, plain: " in text
    )


def test_a_program_that_takes_what_nothing_gives_is_not_described(copy):
    edit(copy, another_argument)
    with pytest.raises(PackageError, match="takes nothing, which nothing before it gives"):
        describe(Package(copy))


def test_a_branch_gives_nothing_to_what_comes_after_it(tmp_path):
    @mb.program(input_specs=[mb.TensorSpec((1,))], opset_version=ct.target.iOS18)
    def program(x):
        chosen = mb.cond(
            pred=mb.squeeze(x=mb.greater(x=x, y=0.0)),
            _true_fn=lambda: mb.exp(x=x, name="inside"),
            _false_fn=lambda: mb.identity(x=x),
        )
        return mb.add(x=chosen, y=x, name="y")

    path = save(program, tmp_path / "branch.mlpackage")
    edit(path, lambda spec: setattr(operation(spec, "add").inputs["x"].arguments[0], "name", "inside"))
    with pytest.raises(PackageError, match="takes inside, which nothing before it gives"):
        Package(path).function()


@pytest.fixture(scope="module")
def typed(tmp_path_factory) -> Path:
    @mb.program(input_specs=[mb.TensorSpec((2,))], opset_version=ct.target.iOS18)
    def program(x):
        half = mb.exp(x=mb.cast(x=x, dtype="fp16"))
        whole = mb.add(x=mb.cast(x=x, dtype="int32"), y=np.int32(300))
        return mb.add(x=mb.cast(x=half, dtype="fp32"), y=mb.cast(x=whole, dtype="fp32"), name="y")

    return save(program, tmp_path_factory.mktemp("typed") / "typed.mlpackage")


def declare(spec, index, kind):
    main_block(spec).operations[index].outputs[0].type.tensorType.dataType = kind


def places(spec, kind):
    return [index for index, op in enumerate(main_block(spec).operations) if op.type == kind]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec: string(spec, "fp16").__setitem__(0, "fp32"), "its dtype is fp32, it declares fp16"),
        (lambda spec: declare(spec, places(spec, "exp")[0], 11), "takes fp16 and declares fp32"),
        (
            lambda spec: operation(spec, "exp").inputs["x"].arguments[0].__setattr__("name", "x"),
            "takes fp32 and declares fp16",
        ),
        (lambda spec: declare(spec, places(spec, "add")[0], 21), "takes int32 and declares int8"),
        (
            lambda spec: (
                main_block(spec)
                .operations[places(spec, "add")[-1]]
                .inputs["y"]
                .arguments[0]
                .__setattr__("name", half_of(spec))
            ),
            "takes fp16 and fp32 together",
        ),
        (lambda spec: main_block(spec).operations.insert(0, operation(spec, "const")), "a second time"),
        (
            lambda spec: spec.mlProgram.functions["main"].inputs.append(
                spec.mlProgram.functions["main"].inputs[0]
            ),
            "takes x twice",
        ),
    ],
)
def test_types_and_names_that_do_not_agree_are_told(typed, tmp_path, change, message):
    path = Path(shutil.copytree(typed, tmp_path / "typed.mlpackage"))
    edit(path, change)
    with pytest.raises(PackageError, match=message):
        Executor(Package(path).function()).run({"x": np.ones(2, np.float32)})


def string(spec, value):
    consts = [
        op.attributes["val"].immediateValue.tensor.strings.values
        for op in main_block(spec).operations
        if op.type == "const"
    ]
    return next(held for held in consts if list(held) == [value])


def half_of(spec):
    return operation(spec, "exp").outputs[0].name


def test_what_is_no_package_is_told(package, tmp_path):
    for path, message in (
        (tmp_path / "none", "no package; expected a folder"),
        (package / MODEL, "no package"),
        (package.parent, "there are small.mlpackage in it"),
    ):
        with pytest.raises(CallError, match=message):
            Package(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "Manifest.json").write_text("{"), "does not say where the model is"),
        (
            lambda path: (path / "Manifest.json").write_text(
                '{"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": "../../x"}}}'
            ),
            "no path inside",
        ),
        (lambda path: (path / MODEL).unlink(), "model.mlmodel: cannot be read"),
        (lambda path: (path / MODEL).write_bytes(b"\xff" * 40), "no Core ML specification"),
        (lambda path: (path / WEIGHTS).unlink(), "weight.bin: cannot be read"),
        (
            lambda path: (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes()[:700]),
            "outside the file of 700 bytes",
        ),
        (lambda path: (path / WEIGHTS).write_bytes(b""), "no weight file"),
        (lambda path: (path / WEIGHTS).write_bytes(bytes(2000)), "no weight file of version 2"),
        (
            lambda path: edit(path, lambda spec: spec.neuralNetwork.layers.add()),
            "holds neuralNetwork, expected an ML program",
        ),
        (lambda path: edit(path, lambda spec: spec.mlProgram.functions.clear()), "has no function"),
    ],
)
def test_a_damaged_package_is_told(copy, damage, message):
    damage(copy)
    with pytest.raises(PackageError, match=message):
        run(copy)


def blob(spec):
    values = [op.attributes["val"] for op in main_block(spec).operations if op.type == "const"]
    return next(value.blobFileValue for value in values if value.WhichOneof("value") == "blobFileValue")


def size_of(op, axis):
    return op.outputs[0].type.tensorType.dimensions[axis].constant


def more_inputs(spec):
    softmax = operation(spec, "softmax")
    softmax.inputs["sharpness"].CopyFrom(softmax.inputs["axis"])


def another_attribute(spec):
    operation(spec, "softmax").attributes["axis"].CopyFrom(operation(spec, "const").attributes["val"])


def axis_of(spec):
    name = operation(spec, "softmax").inputs["axis"].arguments[0].name
    return next(op for op in main_block(spec).operations if op.outputs[0].name == name).attributes["val"]


def hold(field, *values):
    def change(spec):
        tensor = axis_of(spec).immediateValue.tensor
        tensor.ClearField("value")
        getattr(tensor, field).values.extend(values)

    return change


def absurd_shape(*sizes):
    def change(spec):
        kind = operation(spec, "softmax").outputs[0].type.tensorType
        del kind.dimensions[:]
        for size in sizes:
            kind.dimensions.add().constant.size = size

    return change


def absurd_state(spec):
    state = spec.mlProgram.functions["main"].inputs.add(name="s")
    kind = state.type.stateType.wrappedType.tensorType
    kind.dataType = 10
    kind.dimensions.add().constant.size = 2**31
    described = spec.description.state.add(name="s")
    described.type.stateType.arrayType.dataType = 65552
    described.type.stateType.arrayType.shape.append(2**31)


def another_argument(spec):
    operation(spec, "softmax").inputs["x"].arguments[0].name = "nothing"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda spec: setattr(blob(spec), "offset", 10**9), PackageError, "lies outside the file"),
        (lambda spec: setattr(blob(spec), "offset", 128), PackageError, "no description of a blob"),
        (lambda spec: setattr(blob(spec), "fileName", "/etc/passwd"), PackageError, "outside the package"),
        (
            lambda spec: setattr(blob(spec), "fileName", "@model_path/../../../x"),
            PackageError,
            "no path inside the package",
        ),
        (
            lambda spec: setattr(operation(spec, "softmax"), "type", "hardmax"),
            UnsupportedError,
            r"operation \d \(hardmax\).*no operation hardmax",
        ),
        (another_attribute, UnsupportedError, "has attribute 'axis', which is not known"),
        (hold("strings", "x"), PackageError, "held as strings"),
        (hold("floats", float("nan")), PackageError, "held as floats"),
        (hold("longInts", 2**40), PackageError, "a number that it cannot hold"),
        (hold("ints", 0, 1), PackageError, "with 2 values"),
        (absurd_shape(0, 2**63 - 1), UnsupportedError, "a tensor of 2 axes"),
        (absurd_shape(*[1] * 70), UnsupportedError, "a tensor of 70 axes"),
        (absurd_state, PackageError, "state s: fp16.2147483648. has no fixed shape, or an absurd one"),
        (lambda spec: operation(spec, "const").outputs.pop(), PackageError, "declares no output"),
        (lambda spec: operation(spec, "const").attributes.pop("val"), PackageError, "holds no value"),
        (
            lambda spec: setattr(spec.mlProgram.functions["main"], "opset", "CoreML99"),
            UnsupportedError,
            "op set 'CoreML99'",
        ),
        (more_inputs, UnsupportedError, "no input 'sharpness'"),
        (lambda spec: operation(spec, "softmax").inputs.pop("x"), UnsupportedError, "lacks its input 'x'"),
        (
            lambda spec: main_block(spec).outputs.append("z"),
            PackageError,
            "output z is given by no operation",
        ),
        (another_argument, PackageError, "takes nothing, which nothing before it gives"),
        (
            lambda spec: setattr(operation(spec, "softmax").outputs[0].type.tensorType, "dataType", 77),
            UnsupportedError,
            "data type 77",
        ),
        (
            lambda spec: setattr(size_of(operation(spec, "linear"), 1), "size", 23),
            MilError,
            r"gives shape \[2, 24\]",
        ),
        (
            lambda spec: setattr(operation(spec, "linear").outputs[0].type.tensorType, "dataType", 23),
            PackageError,
            "takes fp32 and declares int32",
        ),
    ],
)
def test_a_program_that_makes_no_sense_is_told_with_its_place(copy, change, error, message):
    edit(copy, change)
    with pytest.raises(error, match=message):
        run(copy)
    with contextlib.suppress(MilError):  # and nothing else
        describe_text(describe(Package(copy)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda spec: setattr(spec.description.input[0], "name", "z"),
            "input x is in the program, and not described",
        ),
        (lambda spec: spec.description.output.add(name="w"), "output w is described, and not in the program"),
        (
            lambda spec: setattr(spec.description.output[0].type.multiArrayType, "dataType", 65552),
            "output y is described as fp16, the program has fp32",
        ),
        (
            lambda spec: setattr(spec, "specificationVersion", 8),
            "op set CoreML8 needs specification 9, the package says 8",
        ),
    ],
)
def test_a_description_that_is_not_the_programs_is_told(copy, change, message):
    edit(copy, change)
    with pytest.raises(PackageError, match=message):
        describe(Package(copy))


def test_sizes_that_the_description_does_not_allow_are_refused(tmp_path):
    @mb.program(
        input_specs=[mb.TensorSpec((get_new_symbol(), 4)), mb.TensorSpec((get_new_symbol(), 4))],
        opset_version=ct.target.iOS18,
    )
    def program(x, y):
        return mb.exp(x=x, name="a"), mb.exp(x=y, name="b")

    shapes = [
        ct.TensorType("x", ct.Shape((ct.RangeDim(2, 5), 4))),
        ct.TensorType("y", ct.EnumeratedShapes([(1, 4), (7, 4)])),
    ]
    ct.convert(
        program,
        inputs=shapes,
        minimum_deployment_target=ct.target.iOS18,
        compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    ).save(str(tmp_path / "sizes.mlpackage"))
    package = Package(tmp_path / "sizes.mlpackage")
    assert "x fp32[2..5, 4]" in describe_text(
        describe(package)
    ) and "y fp32[1, 4] or [7, 4]" in describe_text(describe(package))
    executor = Executor(package.function())
    for x, y, expected in (
        (5, 7, None),
        (6, 7, "input x is float32.6, 4., expected fp32.2..5, 4."),
        (2, 3, "input y is float32.3, 4., expected fp32.1, 4. or .7, 4."),
    ):
        inputs = {"x": np.zeros((x, 4), np.float32), "y": np.zeros((y, 4), np.float32)}
        with pytest.raises(CallError, match=expected) if expected else contextlib.nullcontext():
            assert executor.run(inputs)["a"].shape == (x, 4)


@pytest.fixture(scope="module")
def varied(package, typed, tmp_path_factory) -> list[Path]:
    """Packages with compressed weights, states, branches and loops, several functions."""
    folder, rng = tmp_path_factory.mktemp("varied"), np.random.default_rng(0)

    @mb.program(
        input_specs=[mb.TensorSpec((2, 16)), mb.StateTensorSpec((2, 16), dtype=types.fp16)],
        opset_version=ct.target.iOS18,
    )
    def held(x, total):
        integers, scale = (
            rng.integers(-8, 8, (24, 16)).astype(types.np_int4_dtype),
            rng.random((24, 2), np.float32).astype(np.float16),
        )
        weight = mb.constexpr_blockwise_shift_scale(data=integers, scale=scale)
        table = mb.constexpr_lut_to_dense(
            indices=rng.integers(0, 16, (16, 24)).astype(types.np_uint4_dtype),
            lut=rng.random((1, 1, 16, 1)).astype(np.float16),
        )
        now = mb.add(x=mb.read_state(input=total), y=mb.cast(x=x, dtype="fp16"))
        mb.coreml_update_state(state=total, value=now)
        return mb.cast(
            x=mb.matmul(x=mb.linear(x=now, weight=weight), y=table, transpose_y=True), dtype="fp32", name="y"
        )

    @mb.program(input_specs=[mb.TensorSpec((2, 16))], opset_version=ct.target.iOS18)
    def branches(x):
        def body(i, y):
            return mb.add(x=i, y=1), mb.mul(x=y, y=np.float32(0.5))

        last = mb.while_loop(_cond=lambda i, y: mb.less(x=i, y=3), _body=body, loop_vars=(0, x))[1]
        positive = mb.greater(x=mb.reduce_sum(x=last), y=np.float32(0))
        return mb.cond(
            pred=positive, _true_fn=lambda: mb.identity(x=last), _false_fn=lambda: mb.exp(x=last), name="y"
        )

    two = ct.utils.MultiFunctionDescriptor()
    for name in ("first", "second"):
        two.add_function(str(package), "main", name)
    two.default_function_name = "first"
    ct.utils.save_multifunction(two, str(folder / "two.mlpackage"))
    return [
        package,
        typed,
        folder / "two.mlpackage",
        save(held, folder / "held.mlpackage", ct.precision.FLOAT16),
        save(branches, folder / "branches.mlpackage"),
    ]


def answer(folder: Path) -> None:
    """Describes and runs whatever can be."""
    package = Package(folder)
    describe_text(describe(package))
    for name in package.function_names:
        executor = Executor(package.function(name))
        inputs = {
            key: np.ones(kind.fixed or (2, 16), kind.scalar.held)
            for key, kind in executor.function.inputs.items()
        }
        executor.run(inputs, executor.new_states())


def test_what_is_fuzzed_runs_as_it_is(varied):
    for path in varied:
        answer(path)


@contextlib.contextmanager
def within(seconds: int):
    """An endless loop becomes an error."""

    def stop(*_):
        raise TimeoutError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@settings(max_examples=400)
@given(st.data())
def test_flipped_bytes_and_cut_files_give_an_answer_or_an_error_of_our_own(varied, tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "fuzz.mlpackage"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(data.draw(st.sampled_from(varied)), folder)
    target = folder / data.draw(
        st.sampled_from([MODEL, MODEL, WEIGHTS if (folder / WEIGHTS).exists() else MODEL, "Manifest.json"])
    )
    content = bytearray(target.read_bytes())
    if data.draw(st.booleans()):
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    target.write_bytes(content)
    try:
        with within(20):
            answer(folder)
    except MilError as error:
        assert str(error)


@given(
    st.integers(1, 8).flatmap(
        lambda width: st.tuples(st.just(width), st.lists(st.integers(0, 2**width - 1), max_size=40))
    )
)
def test_packed_numbers_come_out_as_they_went_in(case):
    width, numbers = case
    packed = sum(number << (width * place) for place, number in enumerate(numbers))
    content = packed.to_bytes(-(-width * len(numbers) // 8), "little")
    np.testing.assert_array_equal(unpack_bits(content, len(numbers), width), np.array(numbers, np.uint8))
