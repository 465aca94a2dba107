//! Waits that time out. Alone in its process, which must exit cleanly while the device is still
//! busy.

mod cpu;

use std::time::Duration;
use tensorpack_pjrt::CompileOptions;
use tensorpack_tensor::{Error, ErrorKind, HostTensor};

#[test]
fn a_wait_times_out_and_the_client_is_abandoned() {
    let Some(client) = cpu::client(1) else { return };
    // A long sequence of matrix products: hours of work.
    let text = "module @slow {
      func.func public @main(%x: tensor<512x512xf32>) -> tensor<512x512xf32> {
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %end = stablehlo.constant dense<1000000> : tensor<i32>
        %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<512x512xf32>
          cond {
            %more = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %more : tensor<i1>
          } do {
            %z = stablehlo.dot_general %y, %x, contracting_dims = [1] x [0]
              : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
            %j = stablehlo.add %i, %one : tensor<i32>
            stablehlo.return %j, %z : tensor<i32>, tensor<512x512xf32>
          }
        return %r#1 : tensor<512x512xf32>
      }
    }";
    let program = client.compile(text, &CompileOptions::new()).unwrap();
    let device = client.devices()[0].clone();
    let x = HostTensor::new([512, 512], vec![0.0f32; 512 * 512]).unwrap();
    let x = client.upload(&x, &device).unwrap();
    let run = program.execute(&[vec![&x]]).unwrap();
    let download = run.outputs[0][0].start_download().unwrap();
    assert!(!download.is_ready().unwrap());
    // An error of the check ends the wait, and the client stays usable.
    let gone = || Err(Error::new(ErrorKind::Peer, "rank 1 is gone"));
    let e = run.done[0].wait_checking(Duration::from_secs(3600), gone).unwrap_err();
    assert_eq!((e.kind(), e.message()), (ErrorKind::Peer, "rank 1 is gone"));
    let mut checks = 0;
    let count = || {
        checks += 1;
        if checks == 3 { gone() } else { Ok(()) }
    };
    assert_eq!(
        run.done[0].wait_checking(Duration::from_secs(3600), count).unwrap_err().kind(),
        ErrorKind::Peer
    );
    assert_eq!(checks, 3);
    assert!(!download.is_ready().unwrap());
    let e = download.wait(Duration::from_micros(10)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Deadline);
    assert!(e.message().starts_with("a device did not finish its work within"), "{e}");
    let e = program.execute(&[vec![&x]]).unwrap_err();
    assert!(e.message().contains("abandoned"), "{e}");
    assert!(client.upload(&HostTensor::scalar(1.0f32), &device).is_err());
    assert!(run.done[0].wait(Duration::from_secs(1)).is_err());
    assert!(run.done[0].wait_checking(Duration::from_secs(1), || Ok(())).is_err());
}
