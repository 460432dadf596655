//! Messages beside the transfers: UCX's active messages, each whole, in their order.

use crate::ffi::{
    EndpointHandle, Functions, Status, StatusPointer, UCP_AM_FLAG_WHOLE_MSG, UCP_AM_HANDLER_PARAM_FIELD_ARG,
    UCP_AM_HANDLER_PARAM_FIELD_CB, UCP_AM_HANDLER_PARAM_FIELD_FLAGS, UCP_AM_HANDLER_PARAM_FIELD_ID,
    UCP_AM_RECV_ATTR_FLAG_RNDV, UCP_AM_SEND_FLAG_EAGER, UCP_OP_ATTR_FIELD_FLAGS, UCS_INPROGRESS, UCS_OK, WorkerHandle,
    outcome, ucp_am_handler_param, ucp_am_recv_param, ucp_request_param,
};
use crate::{Error, Result};
use std::collections::VecDeque;
use std::ffi::{c_uint, c_void};
use std::ptr::null;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The one kind of messages.
const KIND: c_uint = 0;
/// What waits to be taken, messages and bytes of them: more is not sent by anybody who keeps to the protocol.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES_MAX: usize = 4 << 20;

/// Messages that have come and were not taken. UCX has its address: it does not move, and ends after its worker.
#[derive(Debug, Default)]
pub(crate) struct Inbox(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// More came than may wait, or something that is no message of ours.
    is_flooded: bool,
}

unsafe extern "C" fn on_message(
    inbox: *mut c_void,
    _header: *const c_void,
    _header_bytes: usize,
    data: *mut c_void,
    bytes: usize,
    param: *const ucp_am_recv_param,
) -> Status {
    // SAFETY: the argument is the inbox of a worker, which outlives it.
    let mut waiting = unsafe { &*inbox.cast::<Inbox>() }.lock();
    // SAFETY: UCX has filled it for this call.
    let is_elsewhere = unsafe { (*param).recv_attr } & UCP_AM_RECV_ATTR_FLAG_RNDV != 0;
    let has_room = waiting.messages.len() < WAITING_MAX && bytes <= WAITING_BYTES_MAX - waiting.bytes;
    if is_elsewhere || !has_room || waiting.is_flooded {
        waiting.is_flooded = true;
    } else {
        let message = if bytes == 0 {
            Box::default()
        } else {
            // SAFETY: the data are here, as many bytes, for the length of this call.
            unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) }.into()
        };
        waiting.bytes += bytes;
        waiting.messages.push_back(message);
    }
    UCS_OK
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has UCX put the worker's messages here.
    ///
    /// # Safety
    ///
    /// The worker is there, and ends before this does, which does not move until then.
    pub unsafe fn serve(&self, functions: &Functions, worker: *mut WorkerHandle) -> Status {
        let params = ucp_am_handler_param {
            field_mask: UCP_AM_HANDLER_PARAM_FIELD_ID
                | UCP_AM_HANDLER_PARAM_FIELD_FLAGS
                | UCP_AM_HANDLER_PARAM_FIELD_CB
                | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            id: KIND,
            flags: UCP_AM_FLAG_WHOLE_MSG,
            cb: Some(on_message),
            arg: std::ptr::from_ref(self).cast_mut().cast(),
        };
        // SAFETY: the caller's promise; the mask says which parameters count.
        unsafe { (functions.ucp_worker_set_am_recv_handler)(worker, &raw const params) }
    }

    /// The next message, if there is one.
    pub fn take(&self) -> Result<Option<Box<[u8]>>> {
        let mut waiting = self.lock();
        if waiting.is_flooded {
            return Err(Error::Flooded);
        }
        let message = waiting.messages.pop_front();
        waiting.bytes -= message.as_ref().map_or(0, |message| message.len());
        Ok(message)
    }
}

/// Messages that UCX is still sending. It has their addresses: this ends after their worker.
#[derive(Debug, Default)]
pub(crate) struct Outbox(VecDeque<(StatusPointer, Box<[u8]>)>);

impl Outbox {
    /// Sends a message. Who waits for something of the same worker makes it go on its way.
    ///
    /// # Safety
    ///
    /// The endpoint is there, and its worker ends before this does.
    pub unsafe fn send(
        &mut self,
        functions: &Functions,
        endpoint: *mut EndpointHandle,
        message: Box<[u8]>,
    ) -> std::result::Result<(), Status> {
        // SAFETY: as the caller promises.
        unsafe { self.forget_sent(functions) };
        let params = ucp_request_param {
            op_attr_mask: UCP_OP_ATTR_FIELD_FLAGS,
            flags: UCP_AM_SEND_FLAG_EAGER,
            ..ucp_request_param::NONE
        };
        // SAFETY: the endpoint is there; the message stays where it is until it was sent.
        let pointer = unsafe {
            (functions.ucp_am_send_nbx)(
                endpoint,
                KIND,
                null(),
                0,
                message.as_ptr().cast(),
                message.len(),
                &raw const params,
            )
        };
        if let Some(request) = outcome(pointer)? {
            self.0.push_back((request, message));
        }
        Ok(())
    }

    /// # Safety
    ///
    /// The worker of what is sent is there.
    unsafe fn forget_sent(&mut self, functions: &Functions) {
        while let Some((request, _)) = self.0.front() {
            // SAFETY: a request of a worker that is there, not freed yet.
            if unsafe { (functions.ucp_request_check_status)(*request) } == UCS_INPROGRESS {
                return;
            }
            // SAFETY: it has ended, and nobody asks for it any more.
            unsafe { (functions.ucp_request_free)(*request) };
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes(inbox: &Inbox, message: &mut [u8], recv_attr: u64) {
        let param = ucp_am_recv_param { recv_attr, reply_ep: std::ptr::null_mut() };
        let inbox = std::ptr::from_ref(inbox).cast_mut().cast();
        let data = message.as_mut_ptr().cast();
        // SAFETY: all that is named is there during the call.
        let status = unsafe { on_message(inbox, null(), 0, data, message.len(), &raw const param) };
        assert_eq!(status, UCS_OK);
    }

    #[test]
    fn messages_wait_in_their_order_and_no_more_than_may() {
        let inbox = Inbox::default();
        assert_eq!(inbox.take(), Ok(None));
        (0..WAITING_MAX).for_each(|number| comes(&inbox, &mut [u8::try_from(number % 256).unwrap_or(0)], 0));
        assert_eq!(inbox.take().map(|message| message.as_deref() == Some(&[0])), Ok(true));
        comes(&inbox, &mut [], 0);
        assert_eq!(inbox.take().map(|message| message.as_deref() == Some(&[1])), Ok(true));
        (0..2).for_each(|_| comes(&inbox, &mut [9], 0));
        assert_eq!(inbox.take(), Err(Error::Flooded));

        let inbox = Inbox::default();
        comes(&inbox, &mut vec![0; WAITING_BYTES_MAX + 1], 0);
        assert_eq!(inbox.take(), Err(Error::Flooded), "bytes");
        let inbox = Inbox::default();
        comes(&inbox, &mut [1], UCP_AM_RECV_ATTR_FLAG_RNDV);
        assert_eq!(inbox.take(), Err(Error::Flooded), "data that are elsewhere");
    }
}
