use tokio::sync::mpsc;

/// The sending half of a queue of orders to an event loop; any thread may hold one.
#[derive(Debug)]
pub struct OrderSender<T>(mpsc::UnboundedSender<T>);

/// The receiving half.
#[derive(Debug)]
pub struct Orders<T>(mpsc::UnboundedReceiver<T>);

/// A queue of orders. It has no bound of its own: a sender waits for the result of an order before the next.
pub fn orders<T>() -> (OrderSender<T>, Orders<T>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (OrderSender(sender), Orders(receiver))
}

impl<T> OrderSender<T> {
    /// Queues an order; false if the loop is gone.
    pub fn send(&self, order: T) -> bool {
        self.0.send(order).is_ok()
    }
}

impl<T> Clone for OrderSender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Orders<T> {
    /// The next order; `None` once every sender is gone.
    pub async fn next(&mut self) -> Option<T> {
        self.0.recv().await
    }
}
