//! The wrapper, on XLA's CPU plugin.

mod cpu;

use cpu::client;
use std::sync::Arc;
use std::time::Duration;
use tensorpack_pjrt::{
    Buffer, Client, CompileOptions, DistributedOptions, Executable, Execution, KeyValueStore, OptionValue,
    Plugin,
};
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result, bf16};
use tensorpack_testing::plugin_for_tests;

/// Long enough for a loaded machine; a hang fails.
const LIMIT: Duration = Duration::from_secs(120);

const ADD: &str = "module @add {
  func.func public @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<f32>) {
    %sum = stablehlo.add %a, %b : tensor<2x3xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %all = stablehlo.reduce(%sum init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    return %sum, %all : tensor<2x3xf32>, tensor<f32>
  }
}";

fn matrix(values: [f32; 6]) -> HostTensor {
    HostTensor::new([2, 3], values.to_vec()).unwrap()
}

#[test]
fn a_plugin_reports_its_version_and_devices() {
    let Some(plugin) = plugin_for_tests("cpu") else { return };
    let (major, minor) = plugin.api_version();
    assert_eq!(major, 0);
    assert!(minor >= 57);
    assert!(Arc::ptr_eq(&plugin, &Plugin::open(plugin.path()).unwrap()));
    let client = Client::new(&plugin, &[("cpu_device_count", OptionValue::Int(3))]).unwrap();
    assert_eq!(client.platform_name().unwrap(), "cpu");
    assert_eq!(client.devices().len(), 3);
    let ids: Vec<_> = client.devices().iter().map(|device| device.id()).collect();
    assert_eq!(ids, [0, 1, 2]);
    assert!(!client.devices()[0].kind().is_empty());
    assert_eq!(client.process_index().unwrap(), 0);
    let all: Vec<_> = client.global_devices().iter().map(|device| device.id()).collect();
    assert_eq!(all, ids, "there is one process");
    assert!(client.global_devices().iter().all(|d| d.process_index() == 0 && d.is_addressable()));
}

/// A serialized program computes the same in another client, on the devices it was compiled for.
#[test]
fn a_program_is_serialized_and_loaded_again() {
    let (Some(client), Some(other)) = (cpu::client(3), cpu::client(3)) else { return };
    let options = CompileOptions::new().replicas(2).devices([2, 1]);
    let compiled = client.compile(&all_reduce(2), &options).unwrap();
    let serialized = compiled.serialize().unwrap();
    assert!(!serialized.is_empty());
    // SAFETY: the bytes are those of the same plugin.
    let loaded = unsafe { other.deserialize(&serialized) }.unwrap();
    assert_eq!(loaded.device_ids(), [2, 1]);
    assert_eq!(loaded.outputs(), compiled.outputs());
    let run = |client: &Client, program: &Executable| {
        let upload = |id: usize| {
            let x = HostTensor::new([4], vec![id as f32, 0.1, 0.2, 0.3]).unwrap();
            client.upload(&x, &client.devices()[id]).unwrap()
        };
        let arguments = [upload(2), upload(1)];
        let execution = program.execute(&[vec![&arguments[0]], vec![&arguments[1]]]).unwrap();
        execution.outputs.iter().map(|of| of[0].download(LIMIT).unwrap()).collect::<Vec<_>>()
    };
    let (found, expected) = (run(&other, &loaded), run(&client, &compiled));
    assert_eq!(found, expected);
    assert_eq!(found[0].to_f64_vec()[0], 3.0);
    // SAFETY: an empty program contains no code.
    assert!(unsafe { other.deserialize(&[]) }.is_err());
}

/// A store that nobody else uses.
struct NoOthers;

impl KeyValueStore for NoOthers {
    fn get(&self, key: &str, _: Duration) -> Result<Vec<u8>> {
        Err(Error::new(ErrorKind::Peer, format!("rank 1 is gone, so {key:?} has no value")))
    }

    fn try_get(&self, _: &str) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn put(&self, _: &str, _: &[u8]) -> Result<bool> {
        Ok(true)
    }
}

/// XLA's CPU plugin has no collectives between processes.
#[test]
fn a_client_of_several_processes_is_refused() {
    let Some(plugin) = plugin_for_tests("cpu") else { return };
    let options = DistributedOptions::new(0, 2, Arc::new(NoOthers));
    let e = Client::new_distributed(&plugin, &[], &options, LIMIT, &|| Ok(())).unwrap_err();
    println!("{e}");
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    let e =
        Client::new_distributed(&plugin, &[], &DistributedOptions::mock(0), LIMIT, &|| Ok(())).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
}

/// The CPU plugin ignores the state of processes, but checks the structs that carry it.
#[test]
fn the_state_of_processes_is_passed_to_the_plugin() {
    let Some(plugin) = plugin_for_tests("cpu") else { return };
    let options = DistributedOptions::new(0, 1, Arc::new(NoOthers)).abort_collectives_on_failure(true);
    let two = [("cpu_device_count", OptionValue::Int(2))];
    let client = Client::new_distributed(&plugin, &two, &options, LIMIT, &|| Ok(())).unwrap();
    let program = client.compile(&all_reduce(2), &CompileOptions::new().replicas(2)).unwrap();
    assert_eq!(program.device_ids(), [0, 1]);
    let x = HostTensor::new([4], vec![1.5f32; 4]).unwrap();
    let x: Vec<_> = client.devices().iter().map(|device| client.upload(&x, device).unwrap()).collect();
    let sums = || {
        let run = program.execute(&[vec![&x[0]], vec![&x[1]]]).unwrap();
        run.outputs[1][0].download(LIMIT).unwrap().to_f64_vec()
    };
    assert_eq!(sums(), [3.0; 4]);
    let lists = [vec![&x[0]], vec![&x[1]]];
    let run = program.execute_checking(&lists, &[], LIMIT, || Ok(())).unwrap();
    assert_eq!(run.outputs[0][0].download(LIMIT).unwrap().to_f64_vec(), [3.0; 4]);
    let e = program.execute_checking(&lists[..1], &[], LIMIT, || Ok(())).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
    client.abort_collectives(0, "the process of this test is gone").unwrap();
    assert_eq!(client.abort_collectives(1, "").unwrap_err().kind(), ErrorKind::Argument);
    assert_eq!(sums(), [3.0; 4]);
}

#[test]
fn collectives_of_one_process_cannot_be_aborted() {
    let Some(client) = client(2) else { return };
    let e = client.abort_collectives(1, "rank 1 is gone").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(client.store_error().is_none());
}

#[test]
fn a_program_runs_and_its_outputs_are_downloaded() {
    let Some(client) = client(1) else { return };
    let program = client.compile(ADD, &CompileOptions::new()).unwrap();
    assert_eq!(program.devices(), 1);
    assert_eq!(program.outputs(), [(DType::F32, vec![2, 3]), (DType::F32, vec![])]);
    let memory = program.memory().unwrap();
    assert_eq!((memory.arguments, memory.aliased), (48, 0));
    assert!(memory.total() >= 76, "{memory:?}");
    let device = &client.devices()[0];
    let a = client.upload(&matrix([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), device).unwrap();
    let b = client.upload(&matrix([0.5; 6]), device).unwrap();
    for _ in 0..3 {
        let run = program.execute(&[vec![&a, &b]]).unwrap();
        run.done[0].wait(LIMIT).unwrap();
        let sum = run.outputs[0][0].download(LIMIT).unwrap();
        assert_eq!(sum, matrix([1.5, 2.5, 3.5, 4.5, 5.5, 6.5]));
        assert_eq!(run.outputs[0][1].download(LIMIT).unwrap().to_scalar().unwrap(), 24.0);
    }
}

#[test]
fn every_dtype_and_size_round_trips() {
    let Some(client) = client(2) else { return };
    let device = &client.devices()[1];
    for dtype in DType::ALL {
        for sizes in [vec![], vec![5], vec![0, 3], vec![2, 3, 4], vec![1000, 100]] {
            let n: usize = sizes.iter().product();
            let values: Vec<f64> = (0..n).map(|i| (i % 2) as f64).collect();
            let tensor = HostTensor::from_f64(dtype, sizes, &values).unwrap();
            let buffer = client.upload(&tensor, device).unwrap();
            assert_eq!((buffer.dtype(), buffer.sizes()), (dtype, tensor.sizes()));
            assert_eq!(buffer.download(LIMIT).unwrap(), tensor);
            let there = buffer.copy_to(&client.devices()[0]).unwrap();
            assert_eq!(there.download(LIMIT).unwrap(), tensor);
        }
    }
    let odd = HostTensor::new([3], vec![bf16::NAN, bf16::MIN, bf16::from_f32(1.5)]).unwrap();
    let back = client.upload(&odd, device).unwrap().download(LIMIT).unwrap();
    assert_eq!(odd.as_bytes(), back.as_bytes());
}

#[test]
fn a_tensor_may_be_dropped_while_it_is_copied() {
    let Some(client) = client(1) else { return };
    let program = client.compile(ADD, &CompileOptions::new()).unwrap();
    let upload = |i: usize| client.upload(&matrix([i as f32; 6]), &client.devices()[0]).unwrap();
    let runs: Vec<_> = (0..200)
        .map(|i| program.execute(&[vec![&upload(i), &upload(1)]]).unwrap().outputs.remove(0).remove(0))
        .map(|sum| sum.start_download().unwrap())
        .collect();
    drop(program);
    for (i, run) in runs.into_iter().enumerate() {
        if i % 3 > 0 {
            assert_eq!(run.wait(LIMIT).unwrap(), matrix([i as f32 + 1.0; 6]));
        }
    }
}

#[test]
fn an_aliased_argument_is_donated() {
    let Some(client) = client(1) else { return };
    let text = "module @count {
      func.func public @main(%n: tensor<1024xi32> {tf.aliasing_output = 0 : i32}, %one: tensor<1024xi32>)
        -> tensor<1024xi32> {
        %next = stablehlo.add %n, %one : tensor<1024xi32>
        return %next : tensor<1024xi32>
      }
    }";
    let program = client.compile(text, &CompileOptions::new()).unwrap();
    assert_eq!(program.memory().unwrap().aliased, 4096);
    let upload = |value: i32| {
        client.upload(&HostTensor::new([1024], vec![value; 1024]).unwrap(), &client.devices()[0]).unwrap()
    };
    let (first, one) = (upload(0), upload(1));
    let next = |n: &Buffer| program.execute(&[vec![n, &one]]).unwrap().outputs.remove(0).remove(0);
    let mut n = next(&first);
    for _ in 0..9 {
        n = next(&n);
    }
    assert_eq!(n.download(LIMIT).unwrap().as_slice::<i32>().unwrap(), [10; 1024]);
    assert!(first.is_donated().unwrap() && !one.is_donated().unwrap());
    let again = first.download(LIMIT).unwrap_err();
    assert!(again.message().starts_with("XLA says"), "{again}");
    assert!(program.execute(&[vec![&first, &one]]).is_err());
    // An argument that must stay usable is copied instead.
    let kept = upload(5);
    let run = program.execute_without_donating(&[vec![&kept, &one]], &[0]).unwrap();
    assert_eq!(run.outputs[0][0].download(LIMIT).unwrap().as_slice::<i32>().unwrap(), [6; 1024]);
    assert!(!kept.is_donated().unwrap());
    assert_eq!(kept.download(LIMIT).unwrap().as_slice::<i32>().unwrap(), [5; 1024]);
}

/// A program that sums its argument over `n` replicas and returns the replica id, too.
fn all_reduce(n: usize) -> String {
    let replicas: Vec<_> = (0..n).map(|i| i.to_string()).collect();
    let groups = replicas.join(", ");
    format!(
        "module @sum attributes {{mhlo.num_replicas = {n} : i32}} {{
          func.func public @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<i32>) {{
            %sum = \"stablehlo.all_reduce\"(%x) ({{
              ^bb0(%a: tensor<f32>, %b: tensor<f32>):
                %c = stablehlo.add %a, %b : tensor<f32>
                stablehlo.return %c : tensor<f32>
            }}) {{replica_groups = dense<[[{groups}]]> : tensor<1x{n}xi64>}} : (tensor<4xf32>) -> tensor<4xf32>
            %id = stablehlo.replica_id : tensor<ui32>
            %own = stablehlo.convert %id : (tensor<ui32>) -> tensor<i32>
            return %sum, %own : tensor<4xf32>, tensor<i32>
          }}
        }}"
    )
}

#[test]
fn replicas_sum_over_all_devices() {
    let Some(client) = client(8) else { return };
    for (n, devices) in [(8, Vec::new()), (4, vec![6, 4, 2, 0]), (1, vec![5])] {
        let options = CompileOptions::new().replicas(n).devices(devices.clone());
        let program = client.compile(&all_reduce(n), &options).unwrap();
        assert_eq!(program.devices(), n);
        let ids: Vec<i64> = if devices.is_empty() { (0..8).collect() } else { devices.clone() };
        assert_eq!(program.device_ids(), ids, "the order of replicas");
        let places: Vec<usize> = match devices.is_empty() {
            true => (0..n).collect(),
            false => devices.iter().map(|&id| id as usize).collect(),
        };
        let upload = |(replica, &place): (usize, &usize)| {
            let x = HostTensor::new([4], vec![replica as f32 + 1.0; 4]).unwrap();
            client.upload(&x, &client.devices()[place]).unwrap()
        };
        let inputs: Vec<_> = places.iter().enumerate().map(upload).collect();
        let arguments: Vec<_> = inputs.iter().map(|x| vec![x]).collect();
        let run = program.execute(&arguments).unwrap();
        let sum = (n * (n + 1) / 2) as f64;
        for (replica, (outputs, done)) in run.outputs.iter().zip(&run.done).enumerate() {
            done.wait(LIMIT).unwrap();
            assert_eq!(outputs[0].download(LIMIT).unwrap().to_f64_vec(), [sum; 4]);
            assert_eq!(outputs[1].download(LIMIT).unwrap().to_scalar().unwrap(), replica as f64);
        }
    }
}

#[test]
fn a_program_is_partitioned() {
    let Some(client) = client(4) else { return };
    let text = "module @cut attributes {mhlo.num_partitions = 2 : i32} {
      func.func public @main(%x: tensor<6xf32> {mhlo.sharding = \"{devices=[2]<=[2]}\"})
        -> (tensor<6xf32> {mhlo.sharding = \"{devices=[2]<=[2]}\"}, tensor<f32> {mhlo.sharding = \"{replicated}\"}) {
        %double = stablehlo.add %x, %x : tensor<6xf32>
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %all = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
          : (tensor<6xf32>, tensor<f32>) -> tensor<f32>
        return %double, %all : tensor<6xf32>, tensor<f32>
      }
    }";
    let places = [3, 1];
    let options = CompileOptions::new().partitions(2).devices(places.map(|place| place as i64));
    let program = client.compile(text, &options).unwrap();
    assert_eq!(program.outputs(), [(DType::F32, vec![3]), (DType::F32, vec![])]);
    let part = |values: [f32; 3], place: usize| {
        client.upload(&HostTensor::new([3], values.to_vec()).unwrap(), &client.devices()[place]).unwrap()
    };
    let (left, right) = (part([1.0, 2.0, 3.0], places[0]), part([4.0, 5.0, 6.0], places[1]));
    let run = program.execute(&[vec![&left], vec![&right]]).unwrap();
    for (outputs, double) in run.outputs.iter().zip([[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]) {
        assert_eq!(outputs[0].download(LIMIT).unwrap().to_f64_vec(), double);
        assert_eq!(outputs[1].download(LIMIT).unwrap().to_scalar().unwrap(), 21.0);
    }
    let swapped = program.execute(&[vec![&right], vec![&left]]).unwrap_err();
    assert!(swapped.message().starts_with("XLA says INVALID_ARGUMENT"), "{swapped}");
}

#[test]
fn an_invalid_module_is_an_error_with_xlas_message() {
    let Some(client) = client(1) else { return };
    let e = client.compile("module { not stablehlo }", &CompileOptions::new()).unwrap_err();
    assert!(
        e.message().starts_with("XLA says ") && e.message().contains("custom op 'not' is unknown"),
        "{e}"
    );
    let wrong = ADD.replace("return %sum, %all", "return %sum, %sum");
    let e = client.compile(&wrong, &CompileOptions::new()).unwrap_err();
    assert!(e.message().contains("type"), "{e}");
}

#[test]
fn flags_reach_the_compiler() {
    let Some(client) = client(1) else { return };
    let options = CompileOptions::new().setting("xla_cpu_enable_fast_math", true);
    client.compile(ADD, &options.setting("xla_backend_optimization_level", 1)).unwrap();
    let e = client.compile(ADD, &CompileOptions::new().setting("xla_no_such_thing", true)).unwrap_err();
    assert!(e.message().contains("xla_no_such_thing"), "{e}");
}

#[test]
fn wrong_arguments_are_errors() {
    let Some(client) = client(2) else { return };
    let e = client.compile(&all_reduce(3), &CompileOptions::new().replicas(3)).unwrap_err();
    assert!(e.message().starts_with("XLA says"), "{e}");
    let program = client.compile(ADD, &CompileOptions::new()).unwrap();
    let a = client.upload(&matrix([0.0; 6]), &client.devices()[0]).unwrap();
    assert!(program.execute(&[vec![&a]]).is_err());
    assert_eq!(program.execute(&[]).unwrap_err().kind(), ErrorKind::Argument);
    let small = client.upload(&HostTensor::scalar(0.0f32), &client.devices()[0]).unwrap();
    assert!(program.execute(&[vec![&a, &small]]).is_err());
    let other = cpu::client(1).unwrap();
    let foreign = other.upload(&matrix([0.0; 6]), &other.devices()[0]).unwrap();
    let e = program.execute(&[vec![&a, &foreign]]).unwrap_err();
    assert_eq!(e.message(), "an argument is a buffer of another client");
    assert!(client.upload(&matrix([0.0; 6]), &other.devices()[0]).is_err());
}

#[test]
fn buffers_outlive_their_client_and_move_to_other_threads() {
    let Some(client) = client(1) else { return };
    let program = client.compile(ADD, &CompileOptions::new()).unwrap();
    let a = client.upload(&matrix([1.0; 6]), &client.devices()[0]).unwrap();
    drop(client);
    let sum =
        std::thread::spawn(move || program.execute(&[vec![&a, &a]]).unwrap().outputs.remove(0).remove(0));
    assert_eq!(sum.join().unwrap().download(LIMIT).unwrap(), matrix([2.0; 6]));
}

#[test]
fn threads_share_a_client() {
    let Some(client) = client(2) else { return };
    let program = client.compile(ADD, &CompileOptions::new().devices([1])).unwrap();
    let work = &|thread: usize| {
        for i in 0..50 {
            let x = matrix([(100 * thread + i) as f32; 6]);
            let buffer = client.upload(&x, &client.devices()[1]).unwrap();
            let run = program.execute(&[vec![&buffer, &buffer]]).unwrap();
            let double = run.outputs[0][0].download(LIMIT).unwrap();
            assert_eq!(double, matrix([(200 * thread + 2 * i) as f32; 6]));
            run.done[0].wait(LIMIT).unwrap();
        }
        client.compile(ADD, &CompileOptions::new()).unwrap();
    };
    std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || work(thread)))));
}

#[test]
fn out_of_memory_is_an_error_with_the_planned_memory() {
    let Some(client) = client(1) else { return };
    let text = "module @huge {
      func.func public @main(%x: tensor<f32>) -> tensor<35184372088832xf32> {
        %y = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f32>) -> tensor<35184372088832xf32>
        return %y : tensor<35184372088832xf32>
      }
    }";
    let program = client.compile(text, &CompileOptions::new()).unwrap();
    let planned = program.memory().unwrap();
    assert_eq!(planned.outputs, 1 << 47);
    let x = client.upload(&HostTensor::scalar(1.0f32), &client.devices()[0]).unwrap();
    // A plugin may fail to start the execution, or report the error with its event.
    let done = |run: Execution| run.done[0].wait(LIMIT).map_err(|e| program.explain(e));
    let e = program.execute(&[vec![&x]]).and_then(done).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Memory, "{e}");
    assert!(e.to_string().contains("140737488.4 of outputs (0.0 aliased)"), "{e}");
}
