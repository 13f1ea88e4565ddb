// Stands in for the proxy's server of RocketMQ's older protocol, which listens on all addresses and can't be told not to.
package org.apache.rocketmq.proxy.remoting;

import org.apache.rocketmq.common.utils.StartAndShutdown;
import org.apache.rocketmq.proxy.processor.MessagingProcessor;
import org.apache.rocketmq.proxy.service.cert.TlsCertificateManager;

public class RemotingProtocolServer implements StartAndShutdown {
    public RemotingProtocolServer(MessagingProcessor messagingProcessor, TlsCertificateManager certificates) {
    }

    @Override
    public void start() {
    }

    @Override
    public void shutdown() {
    }
}
